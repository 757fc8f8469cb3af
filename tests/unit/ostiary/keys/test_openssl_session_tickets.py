"""Which sessions a server lets clients resume."""

from __future__ import annotations

import ssl
import sys

import pytest
import trustme

from ostiary.keys import openssl as library
from ostiary.keys.openssl import seal_tickets, turn_off_resumption
from ostiary_gateway.http1.server_tls import ListenerContext
from tests.support.tls_in_memory import VERSIONS, shake_hands, trusting

SECRET = b"s" * 64
VERSION = pytest.mark.parametrize("version", VERSIONS, ids=lambda version: version.name)


def server(leaf: trustme.LeafCert) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    leaf.configure_cert(context)
    return context


@pytest.fixture
def leaf(ca: trustme.CA) -> trustme.LeafCert:
    return ca.issue_cert("localhost")


@VERSION
def test_a_session_is_resumed_by_every_context_with_the_same_secret(
    version: ssl.TLSVersion, ca: trustme.CA, leaf: trustme.LeafCert
) -> None:
    one, other = server(leaf), server(leaf)
    assert seal_tickets(one, SECRET, purpose=b"a")
    assert seal_tickets(other, SECRET, purpose=b"a")
    client = trusting(ca, version)
    first = shake_hands(one, client)
    assert not first.resumed
    assert shake_hands(one, client, first.client.session).resumed
    assert shake_hands(other, client, first.client.session).resumed


@VERSION
@pytest.mark.parametrize(("secret", "purpose"), [(b"t" * 64, b"a"), (SECRET, b"b")], ids=["secret", "purpose"])
def test_another_secret_or_purpose_makes_it_a_full_handshake(
    version: ssl.TLSVersion, secret: bytes, purpose: bytes, ca: trustme.CA, leaf: trustme.LeafCert
) -> None:
    one, other = server(leaf), server(leaf)
    seal_tickets(one, SECRET, purpose=b"a")
    seal_tickets(other, secret, purpose=purpose)
    client = trusting(ca, version)
    assert not shake_hands(other, client, shake_hands(one, client).client.session).resumed


def test_new_keys_in_a_context_that_is_in_use_end_what_came_before(ca: trustme.CA, leaf: trustme.LeafCert) -> None:
    context, client = server(leaf), trusting(ca)
    seal_tickets(context, SECRET, purpose=b"a")
    old = shake_hands(context, client).client.session
    seal_tickets(context, b"t" * 64, purpose=b"a")
    assert not shake_hands(context, client, old).resumed


@VERSION
def test_without_tickets_the_server_keeps_no_session_either(
    version: ssl.TLSVersion, ca: trustme.CA, leaf: trustme.LeafCert
) -> None:
    context = server(leaf)
    seal_tickets(context, SECRET, purpose=b"a")
    client = trusting(ca, version)
    client.options |= ssl.OP_NO_TICKET
    shake_hands(context, client)
    assert context.session_stats()["number"] == 0


@VERSION
@pytest.mark.parametrize("tickets", [True, False])
def test_where_it_is_off_nobody_resumes(
    version: ssl.TLSVersion, tickets: bool, ca: trustme.CA, leaf: trustme.LeafCert
) -> None:
    context = server(leaf)
    ca.configure_trust(context)
    context.verify_mode = ssl.CERT_OPTIONAL
    turn_off_resumption(context)
    client = trusting(ca, version)
    ca.issue_cert("me@example.test").configure_cert(client)
    if not tickets:
        client.options |= ssl.OP_NO_TICKET
    first = shake_hands(context, client)
    assert first.server.getpeercert()
    assert not shake_hands(context, client, first.client.session).resumed


# --- where the OpenSSL of `ssl` cannot be reached ---


@pytest.fixture
def unreachable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "_loaded", None)
    monkeypatch.setattr(sys.implementation, "name", "another")


@pytest.mark.usefixtures("unreachable")
@VERSION
def test_there_each_context_has_tickets_of_its_own(
    version: ssl.TLSVersion, ca: trustme.CA, leaf: trustme.LeafCert
) -> None:
    one, other, client = server(leaf), server(leaf), trusting(ca, version)
    assert not seal_tickets(one, SECRET, purpose=b"a")
    assert not seal_tickets(other, SECRET, purpose=b"a")
    session = shake_hands(one, client).client.session
    assert shake_hands(one, client, session).resumed
    assert not shake_hands(other, client, session).resumed


@pytest.mark.usefixtures("unreachable")
@VERSION
def test_there_a_client_certificate_is_not_resumed_either(
    version: ssl.TLSVersion, ca: trustme.CA, leaf: trustme.LeafCert
) -> None:
    """By its number a session of TLS 1.2 would be: the listener refuses it."""
    context = ListenerContext(ssl.PROTOCOL_TLS_SERVER)
    leaf.configure_cert(context)
    ca.configure_trust(context)
    context.verify_mode = ssl.CERT_OPTIONAL
    turn_off_resumption(context)
    client = trusting(ca, version)
    ca.issue_cert("me@example.test").configure_cert(client)
    # Held: a connection that ends without a farewell takes its session out of the cache.
    first = shake_hands(context, client)
    if version is ssl.TLSVersion.TLSv1_2:
        with pytest.raises(ssl.SSLError, match="nobody has checked again"):
            shake_hands(context, client, first.client.session)
    else:
        assert not shake_hands(context, client, first.client.session).resumed
