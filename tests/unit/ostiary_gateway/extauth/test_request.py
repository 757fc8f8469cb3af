"""The request that a proxy will forward, read from its question: from its fixed sources, and from nothing else."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ostiary_gateway.config.extauth import ProxyKind
from ostiary_gateway.extauth.dialects import DIALECTS
from ostiary_gateway.extauth.request import BadQuestion, CarriedRequest, carried_request
from ostiary_gateway.http1.request_head import RequestHead, RequestRefused

NGINX = {
    "X-Original-Method": "POST",
    "X-Original-URI": "/a?q=1",
    "X-Original-Host": "shop.example",
    "X-Original-Content-Length": "12",
    "X-Forwarded-For": "192.0.2.1",
}
TRAEFIK = {
    "X-Forwarded-Method": "POST",
    "X-Forwarded-Uri": "/a?q=1",
    "X-Forwarded-Host": "shop.example",
    "X-Forwarded-For": "192.0.2.1",
}
CADDY = {**TRAEFIK, "X-Original-Host": "shop.example"}
QUESTIONS = {ProxyKind.NGINX: NGINX, ProxyKind.TRAEFIK: TRAEFIK, ProxyKind.CADDY: CADDY}


def head(method: str, host: str, headers: list[tuple[str, str]]) -> RequestHead:
    request = RequestHead()
    request.method, request.host = method.encode(), host.encode()
    request.headers = [(name.encode(), value.encode("latin-1")) for name, value in headers]
    return request


def ask(kind: ProxyKind, headers: dict[str, str], *more: tuple[str, str], behind: str = "") -> CarriedRequest:
    request = head("GET", "gateway.test", [*headers.items(), *more])
    return carried_request(DIALECTS[kind], request, behind.encode())


@pytest.mark.parametrize("kind", list(QUESTIONS))
def test_method_target_and_host_come_from_the_headers_of_the_proxy(kind: ProxyKind) -> None:
    carried = ask(kind, QUESTIONS[kind], ("Authorization", "Bearer t"), behind="?q=of-the-question")
    assert (carried.head.method, carried.head.target, carried.head.host) == (b"POST", b"/a?q=1", b"shop.example")
    assert carried.address == "192.0.2.1"
    assert (b"Authorization", b"Bearer t") in carried.head.headers


@pytest.mark.parametrize("kind", [ProxyKind.ENVOY, ProxyKind.GATEWAY_API])
def test_envoy_and_the_gateway_api_send_the_request_line_itself(kind: ProxyKind) -> None:
    request = head("PUT", "shop.example", [("X-Original-Address", "192.0.2.1"), ("X-Original-URI", "/evil")])
    carried = carried_request(DIALECTS[kind], request, b"/a?q=1")
    assert (carried.head.method, carried.head.target, carried.head.host) == (b"PUT", b"/a?q=1", b"shop.example")


def test_where_a_proxy_joins_lines_nobody_can_be_two_in_one(subtests: pytest.Subtests) -> None:

    def asked(kind: ProxyKind, name: str, value: str) -> CarriedRequest:
        headers = [("X-Original-Address", "192.0.2.1"), ("Impersonate-User", "bob"), (name, value)]
        return carried_request(DIALECTS[kind], head("GET", "shop.example", headers), b"/a")

    for kind in [ProxyKind.ENVOY, ProxyKind.GATEWAY_API]:
        for name in ["Impersonate-User", "impersonate-group", "Impersonate-Extra-Scope"]:
            with subtests.test(kind=kind, name=name):
                assert (name.encode(), b"one") in asked(kind, name, "one").head.headers
                for joined in ("one,two", "one, two", ","):
                    with pytest.raises(RequestRefused) as refused:
                        asked(kind, name, joined)
                    assert refused.value.status == 400


def test_where_lines_stay_apart_a_group_may_have_a_comma() -> None:
    carried = ask(ProxyKind.NGINX, NGINX, ("Impersonate-Group", "cn=dev,dc=example"))
    assert (b"Impersonate-Group", b"cn=dev,dc=example") in carried.head.headers


def test_a_source_that_is_missing_or_empty_or_there_twice_is_a_bad_question(subtests: pytest.Subtests) -> None:
    for kind in list(QUESTIONS):
        for name in ["method", "uri", "address"]:
            with subtests.test(kind=kind, name=name):
                source = getattr(DIALECTS[kind], name).decode()
                (spelled,) = [key for key in QUESTIONS[kind] if key.lower() == source]
                rest = {key: value for key, value in QUESTIONS[kind].items() if key != spelled}
                for headers, more in (
                    (rest, ()),
                    ({**rest, spelled: ""}, ()),
                    (QUESTIONS[kind], ((source.upper(), "GET"),)),
                ):
                    with pytest.raises(BadQuestion) as caught:
                        ask(kind, headers, *more)
                    assert source in str(caught.value)


def test_the_sources_of_another_proxy_are_headers_of_the_client() -> None:
    carried = ask(ProxyKind.NGINX, NGINX, ("X-Forwarded-Uri", "/evil"), ("X-Forwarded-Method", "GET"))
    assert (carried.head.method, carried.head.target) == (b"POST", b"/a?q=1")
    carried = ask(ProxyKind.TRAEFIK, TRAEFIK, ("X-Original-URI", "/evil"), ("X-Original-Method", "GET"))
    assert (carried.head.method, carried.head.target) == (b"POST", b"/a?q=1")


def test_only_the_last_address_is_the_proxys_own_and_the_others_are_claims() -> None:
    carried = ask(ProxyKind.NGINX, {**NGINX, "X-Forwarded-For": "203.0.113.9, 10.0.0.1, 192.0.2.1"})
    assert carried.address == "192.0.2.1"
    assert (b"x-forwarded-for", b"203.0.113.9, 10.0.0.1") in carried.head.headers


@pytest.mark.parametrize("text", ["rubbish", "192.0.2.1,", "192.0.2.1, x", "unix:", "192.0.2.1:80"])
def test_an_address_that_is_none_is_a_bad_question(text: str) -> None:
    with pytest.raises(BadQuestion):
        ask(ProxyKind.NGINX, {**NGINX, "X-Forwarded-For": text})


def test_what_our_own_listener_would_refuse_is_refused(subtests: pytest.Subtests) -> None:
    cases: list[tuple[dict[str, str], int]] = [
        ({"X-Original-Method": "FOO"}, 400),
        ({"X-Original-Method": "get"}, 400),
        ({"X-Original-Method": "TRACE"}, 405),
        ({"X-Original-Method": "CONNECT"}, 405),
        ({"X-Original-Host": ""}, 400),
        ({"X-Original-Upgrade": "h2c"}, 400),
        ({"X-Original-Content-Length": "-1"}, 400),
        ({"X-Original-Content-Length": "9" * 30}, 400),
    ]
    for change, status in cases:
        with subtests.test(change=change, status=status):
            with pytest.raises(RequestRefused) as caught:
                ask(ProxyKind.NGINX, {**NGINX, **change})
            assert caught.value.status == status


def test_an_upgrade_is_told_by_the_proxy() -> None:
    assert ask(ProxyKind.NGINX, {**NGINX, "X-Original-Upgrade": "WebSocket"}).head.upgrade == b"websocket"
    assert ask(ProxyKind.NGINX, NGINX, ("Upgrade", "websocket")).head.upgrade == b""


def test_a_length_is_believed_only_where_the_proxy_tells_it() -> None:
    told = ask(ProxyKind.NGINX, NGINX).head
    assert (told.content_length, told.chunked) == (12, False)
    chunked = ask(ProxyKind.NGINX, {**NGINX, "X-Original-Content-Length": "unknown"}).head
    assert (chunked.content_length, chunked.chunked) == (None, True)
    untold = ask(ProxyKind.TRAEFIK, TRAEFIK, ("Content-Length", "3")).head
    assert (untold.content_length, untold.chunked) == (None, True)


NAMES = st.sampled_from([*NGINX, *TRAEFIK, "x-original-uri", "X-ORIGINAL-METHOD", "Host", "Cookie", "X-Ostiary-Door"])
VALUES = st.text(st.characters(max_codepoint=255, exclude_characters="\r\n\0"), max_size=20)


@given(st.sampled_from(ProxyKind), st.lists(st.tuples(NAMES, VALUES), max_size=12), VALUES)
def test_any_headers_are_read_or_refused_and_never_from_two_places(
    kind: ProxyKind, headers: list[tuple[str, str]], behind: str
) -> None:
    dialect = DIALECTS[kind]
    try:
        carried = carried_request(dialect, head("GET", "gateway.test", headers), behind.encode("latin-1"))
    except (BadQuestion, RequestRefused):
        return
    told = {name.lower().encode(): value.strip(" \t").encode("latin-1") for name, value in headers}
    assert carried.head.target == (told[dialect.uri] if dialect.uri else behind.encode("latin-1"))
    assert carried.head.method == (told[dialect.method] if dialect.method else b"GET")
    assert not {name.lower() for name, _ in carried.head.headers} & (dialect.sources - {b"x-forwarded-for"})
