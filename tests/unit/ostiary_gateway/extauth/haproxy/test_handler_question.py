"""What a message of HAProxy says about a request."""

from __future__ import annotations

from ipaddress import IPv4Address

import pytest

from ostiary_gateway.extauth.haproxy import spop
from ostiary_gateway.extauth.haproxy.handler import HaproxyQuestion, haproxy_question, presented_secret, upstream_of
from ostiary_gateway.extauth.request import BadQuestion
from ostiary_gateway.http1.headers import NO_DIGEST
from ostiary_gateway.http1.request_head import RequestRefused

HOST = (b"host", b"shop.example")
TOKEN = (b"authorization", b"Bearer abc")


def message(*headers: tuple[bytes, bytes], **changed: spop.Value) -> spop.Message:
    lines = b"".join(spop.text(name) + spop.text(value) for name, value in headers or (HOST, TOKEN)) + b"\x00\x00"
    arguments: dict[bytes, spop.Value] = {
        b"secret": b"s",
        b"method": b"GET",
        b"target": b"/x?q=1",
        b"version": b"1.1",
        b"headers": lines,
        b"address": IPv4Address("192.0.2.7"),
        b"stale": None,
    }
    arguments |= {name.encode(): value for name, value in changed.items()}
    return spop.Message(b"ostiary-shop", arguments)


def read(*headers: tuple[bytes, bytes], **changed: spop.Value) -> HaproxyQuestion:
    return haproxy_question(message(*headers, **changed))


def test_the_request_is_what_haproxy_says() -> None:
    question = read(HOST, TOKEN, (b"accept", b"*/*"))
    head = question.request.head
    assert (head.method, head.target, head.host) == (b"GET", b"/x?q=1", b"shop.example")
    assert (question.request.address, head.headers) == ("192.0.2.7", [TOKEN, (b"accept", b"*/*")])
    assert question.key_parts == (b"GET", b"shop.example", b"/x?q=1", b"Bearer abc")
    assert not question.replaces
    assert read(stale=b"1|lease|alice||").replaces


@pytest.mark.parametrize("argument", ["method", "version", "headers", "address"])
def test_without_what_the_printed_configuration_says_nothing_is_asked(argument: str) -> None:
    missing = message()
    del missing.arguments[argument.encode()]
    for changed in (missing, message(**{argument: None}), message(**{argument: 7})):
        with pytest.raises(BadQuestion):
            haproxy_question(changed)


@pytest.mark.parametrize(
    "headers",
    [
        ((b"accept", b"*/*"),),
        (HOST, (b"host", b"other.example")),
        (HOST, (b"content-length", b"x")),
        (HOST, (b"content-length", b"1"), (b"content-length", b"2")),
        (HOST, (b"upgrade", b"h2c")),
    ],
)
def test_what_our_listener_would_not_read_is_refused(headers: tuple[tuple[bytes, bytes], ...]) -> None:
    with pytest.raises(RequestRefused):
        read(*headers)


@pytest.mark.parametrize(
    ("target", "method", "status"), [(None, b"GET", 400), (b"/", b"FOO", 400), (b"/", b"TRACE", 405)]
)
def test_an_unknown_method_or_no_path_is_the_clients_mistake(target: bytes | None, method: bytes, status: int) -> None:
    with pytest.raises(RequestRefused) as refusal:
        read(target=target, method=method)
    assert refusal.value.status == status


@pytest.mark.parametrize(
    ("headers", "version", "length", "chunked"),
    [
        ((), b"1.1", None, False),
        (((b"content-length", b"12"),), b"1.1", 12, False),
        (((b"transfer-encoding", b"chunked"),), b"1.1", None, True),
        ((), b"2.0", None, True),
        (((b"content-length", b"12"),), b"2.0", 12, False),
    ],
)
def test_how_long_the_body_is(
    headers: tuple[tuple[bytes, bytes], ...], version: bytes, length: int | None, chunked: bool
) -> None:
    head = read(HOST, *headers, version=version).request.head
    assert (head.content_length, head.chunked) == (length, chunked)


@pytest.mark.parametrize(
    "more",
    [
        (b"impersonate-user", b"bob"),
        (b"x-impersonate", b"bob"),
        (b"upgrade", b"websocket"),
        (b"authorization", b"Bearer other"),
    ],
)
def test_what_must_be_asked_about_each_time_has_no_key(more: tuple[bytes, bytes]) -> None:
    assert read(HOST, TOKEN, more).key_parts == ()
    assert read(HOST).key_parts == ()


def test_a_secret_that_is_missing_or_no_text_is_none() -> None:
    assert presented_secret(message()) != NO_DIGEST
    for secret in (None, b"", 7, True):
        assert presented_secret(message(secret=secret)) == NO_DIGEST


def test_a_message_of_another_name_is_none_of_ours() -> None:
    assert upstream_of(message()) == b"shop"
    with pytest.raises(BadQuestion):
        upstream_of(spop.Message(b"shop", {}))
