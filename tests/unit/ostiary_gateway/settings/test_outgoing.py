"""TLS files of a server that we call: whatever cannot be used is one kind of error, and shows no key."""

from __future__ import annotations

import pytest
import trustme

from ostiary.errors import TransportError
from ostiary_gateway.settings.outgoing import OutgoingTls, client_context


def test_a_certificate_and_a_key_that_cannot_be_used_are_a_transport_error(
    tmp_path_factory: pytest.TempPathFactory, ca: trustme.CA, subtests: pytest.Subtests
) -> None:
    """They are two files: whoever reads them again may do so after the first was replaced."""
    for damage in ["of another key", "empty", "cut off", "not UTF-8", "missing", "no key"]:
        with subtests.test(damage=damage):
            tmp_path = tmp_path_factory.mktemp("case")
            leaf = ca.issue_cert("client.example")
            certificate, key = tmp_path / "client.pem", tmp_path / "client.key"
            text, key_text = leaf.cert_chain_pems[0].bytes(), leaf.private_key_pem.bytes()
            damaged = {
                "of another key": ca.issue_cert("client.example").cert_chain_pems[0].bytes(),
                "empty": b"",
                "cut off": text[:-100],
                "not UTF-8": b"\xff" + text,
            }
            certificate.write_bytes(damaged.get(damage, text))
            key.write_bytes(key_text[:-100] if damage == "no key" else key_text)
            if damage == "missing":
                certificate.unlink()
            with pytest.raises(TransportError) as caught:
                client_context(OutgoingTls(certificate=certificate, key=key))
            assert caught.value.cause
            assert key_text.decode().splitlines()[1] not in str(caught.value)
