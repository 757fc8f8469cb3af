"""Handshakes are counted, and a session with a client certificate is not resumed whatever OpenSSL says."""

from __future__ import annotations

import ssl
from collections import Counter

import pytest
import trustme

from ostiary_gateway.http1.server_tls import ListenerContext
from tests.support.tls_in_memory import VERSIONS, shake_hands, trusting


@pytest.fixture
def counted() -> Counter[str]:
    return Counter()


@pytest.fixture
def listener(ca: trustme.CA, counted: Counter[str]) -> ListenerContext:
    """As `ssl` makes it: with tickets, and a cache of sessions."""
    context = ListenerContext(ssl.PROTOCOL_TLS_SERVER)
    ca.issue_cert("localhost").configure_cert(context)
    context.on_handshake = lambda result: counted.update([result])
    return context


def test_each_handshake_counts_once(listener: ListenerContext, ca: trustme.CA, counted: Counter[str]) -> None:
    client = trusting(ca)
    first = shake_hands(listener, client)
    shake_hands(listener, client, first.client.session)
    assert counted == {"full": 1, "resumed": 1}


def test_one_that_fails_counts_as_that(listener: ListenerContext, ca: trustme.CA, counted: Counter[str]) -> None:
    listener.minimum_version = ssl.TLSVersion.TLSv1_3
    with pytest.raises(ssl.SSLError):
        shake_hands(listener, trusting(ca, ssl.TLSVersion.TLSv1_2))
    assert counted == {"failed": 1}


@pytest.mark.parametrize("version", VERSIONS, ids=lambda version: version.name)
def test_a_resumed_client_certificate_is_refused_where_resumption_could_not_be_turned_off(
    version: ssl.TLSVersion, listener: ListenerContext, ca: trustme.CA, counted: Counter[str]
) -> None:
    ca.configure_trust(listener)
    listener.verify_mode = ssl.CERT_OPTIONAL
    client = trusting(ca, version)
    ca.issue_cert("me@example.test").configure_cert(client)
    first = shake_hands(listener, client)
    with pytest.raises(ssl.SSLError, match="nobody has checked again"):
        shake_hands(listener, client, first.client.session)
    assert counted == {"full": 1, "failed": 1}


def test_clients_without_a_certificate_resume_there(listener: ListenerContext, ca: trustme.CA) -> None:
    ca.configure_trust(listener)
    listener.verify_mode = ssl.CERT_OPTIONAL
    client = trusting(ca)
    assert shake_hands(listener, client, shake_hands(listener, client).client.session).resumed


def test_what_the_event_loop_calls_does_what_ssl_does(listener: ListenerContext, ca: trustme.CA) -> None:
    shaken = shake_hands(listener, trusting(ca))
    assert shaken.client.write(b"x" * 20_000) == 20_000
    part = bytearray(10)
    shaken.server.read(10, part)
    assert (bytes(part), shaken.server.pending()) == (b"x" * 10, 16384 - 10)
    assert shaken.server.read(100_000) == b"x" * (16384 - 10)
    assert shaken.server.read(100_000) == b"x" * (20_000 - 16384)
    with pytest.raises(ssl.SSLWantReadError):
        shaken.server.read(1)
