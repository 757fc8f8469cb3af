"""The request that Envoy will forward, read from its call."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ostiary_gateway.extauth.ext_authz import carried_request, client_address
from ostiary_gateway.extauth.request import BadQuestion
from ostiary_gateway.http1.headers import Headers
from ostiary_gateway.http1.listen_limits import ListenLimits
from ostiary_gateway.http1.request_head import RequestHead, RequestRefused

PSEUDO = [(b":method", b"GET"), (b":path", b"/x?q=1"), (b":authority", b"shop.example:8080")]
LIMITS = ListenLimits()


def head(headers: Headers) -> RequestHead:
    return carried_request(headers, "192.0.2.7", LIMITS).head


def test_method_target_and_host_are_those_of_the_raw_headers() -> None:
    request = carried_request([*PSEUDO, (b"authorization", b"Bearer x"), (b"x-a", b"\xff")], "192.0.2.7", LIMITS)
    assert (request.head.method, request.head.target, request.head.host) == (b"GET", b"/x?q=1", b"shop.example:8080")
    assert request.head.headers == [(b"authorization", b"Bearer x"), (b"x-a", b"\xff")]
    assert request.address == "192.0.2.7"


def test_repeated_headers_stay_several() -> None:
    lines = [(b"impersonate-group", b"a"), (b"impersonate-group", b"b")]
    assert head([*PSEUDO, *lines]).headers == lines


@pytest.mark.parametrize("name", [b":method", b":path", b":authority", b"content-length"])
def test_a_source_that_is_there_twice_is_the_operators_mistake(name: bytes) -> None:
    with pytest.raises(BadQuestion, match="twice"):
        head([*PSEUDO, (b"content-length", b"1"), (name, b"1")])


@pytest.mark.parametrize("name", [b":method", b":path"])
def test_a_source_that_is_missing_is_the_operators_mistake(name: bytes) -> None:
    with pytest.raises(BadQuestion, match="encode_raw_headers"):
        head([header for header in PSEUDO if header[0] != name])


def test_what_our_own_listener_would_not_read_is_the_clients_mistake(subtests: pytest.Subtests) -> None:
    cases = [
        ([(b":method", b"FOO"), *PSEUDO[1:]], 400),
        ([(b":method", b"get"), *PSEUDO[1:]], 400),
        ([(b":method", b"CONNECT"), *PSEUDO[1:]], 405),
        ([(b":method", b"TRACE"), *PSEUDO[1:]], 405),
        (PSEUDO[:2], 400),
        ([*PSEUDO, (b"content-length", b"-1")], 400),
        ([*PSEUDO, (b"content-length", b"1" * 30)], 400),
        ([*PSEUDO, (b"x", b"v" * (LIMITS.header_bytes + 1))], 431),
        ([*PSEUDO, *[(b"x", b"v")] * (LIMITS.headers + 1)], 431),
    ]
    for headers, status in cases:
        with subtests.test(headers=headers, status=status):
            with pytest.raises(RequestRefused) as refusal:
                head(headers)
            assert refusal.value.status == status


def test_the_length_of_a_body_is_known_where_the_client_announces_it() -> None:
    announced, silent = head([*PSEUDO, (b"content-length", b"12")]), head(PSEUDO)
    assert (announced.content_length, announced.chunked) == (12, False)
    assert (silent.content_length, silent.chunked) == (None, True)


def test_what_is_no_address_is_the_operators_mistake(subtests: pytest.Subtests) -> None:
    for text in [b"", b"shop.example", b"192.0.2", b"\xff", b"192.0.2.1:80", b"/run/socket"]:
        with subtests.test(text=text), pytest.raises(BadQuestion):
            client_address(text)


def test_addresses_have_one_form() -> None:
    assert (client_address(b"192.0.2.1"), client_address(b"2001:DB8:0::1")) == ("192.0.2.1", "2001:db8::1")


@given(
    st.lists(st.tuples(st.sampled_from([b":method", b":path", b":authority", b"x", b"content-length"]), st.binary()))
)
def test_any_headers_make_a_request_or_are_refused(headers: Headers) -> None:
    try:
        request = head(headers)
    except (BadQuestion, RequestRefused):
        return
    sources = dict(headers)
    assert (request.method, request.target, request.host) == tuple(
        sources[name] for name in (b":method", b":path", b":authority")
    )
