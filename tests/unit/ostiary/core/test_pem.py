"""Only what Go takes for a certificate or a key is one."""

from __future__ import annotations

import pytest
import trustme
from hypothesis import given
from hypothesis import strategies as st

from ostiary.core.pem import certificates, private_key
from ostiary.core.tls import parse_certificate


@pytest.fixture(scope="module")
def pair() -> tuple[str, str]:
    leaf = trustme.CA().issue_cert("dev@example.test", common_name="dev")
    return leaf.cert_chain_pems[0].bytes().decode(), leaf.private_key_pem.bytes().decode()


def test_plain_pem_stays_as_it_is(pair: tuple[str, str]) -> None:
    certificate, key = pair
    assert (certificates(certificate), private_key(key)) == pair
    assert certificates(certificate * 2) == certificate * 2


def test_what_stands_around_and_other_blocks_are_skipped(pair: tuple[str, str]) -> None:
    certificate, key = pair
    parameters = "-----BEGIN EC PARAMETERS-----\nBggqhkjOPQMBBw==\n-----END EC PARAMETERS-----\n"
    assert certificates(f"junk\n{key}{certificate}junk") == certificate
    assert private_key(f"junk\n{parameters}{certificate}{key}junk") == key
    assert parse_certificate(f"{key}{certificate}", f"{parameters}{key}").chain_pem == certificate


def test_headers_are_dropped_where_openssl_would_stumble_over_them(pair: tuple[str, str]) -> None:
    certificate, key = pair
    with_header = certificate.replace("-----\n", "-----\nFoo: bar\n\n", 1)
    assert parse_certificate(with_header, key).not_after is not None
    assert certificates(with_header, with_headers=False) == ""


@pytest.mark.parametrize("name", ["X509 CERTIFICATE", "TRUSTED CERTIFICATE", "certificate", "CERTIFICATE "])
def test_another_name_for_a_certificate_is_refused(pair: tuple[str, str], name: str) -> None:
    renamed = pair[0].replace(" CERTIFICATE-----", f" {name}-----")
    assert certificates(renamed) == ""
    with pytest.raises(ValueError, match="not a PEM certificate"):
        parse_certificate(renamed, pair[1])


def test_an_end_in_the_middle_of_a_line_is_no_end(pair: tuple[str, str]) -> None:
    assert certificates(pair[0].replace("\n-----END", "-----END")) == ""


@given(st.text(max_size=200))
def test_whatever_the_text_only_whole_blocks_come_out(text: str) -> None:
    for found in (certificates(text), private_key(text)):
        assert found == "" or found.startswith("-----BEGIN ")
