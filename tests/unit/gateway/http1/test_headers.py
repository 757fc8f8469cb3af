"""Which headers pass: a client's claims never, ours always, one line each."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ostiary.core.implied_groups import impersonated
from ostiary.gateway.http1.headers import (
    WEBSOCKET_BEARER,
    BadHeader,
    HeaderFilter,
    HeaderNames,
    answered,
    identity_lines,
    impersonation,
    websocket_token,
)
from ostiary.model import UserInfo

CLAIMS = (
    "Authorization",
    "Impersonate-User",
    "Impersonate-Uid",
    "Impersonate-Group",
    "Impersonate-Extra-Scopes",
    "X-Remote-User",
    "X-Remote-Group",
    "X-Remote-Uid",
    "X-Remote-Extra-Scopes",
    "Remote-User",
    "X-Forwarded-For",
    "X-Forwarded-Host",
    "X-Forwarded-Uri",
    "X-Forwarded-Method",
    "X-Forwarded-Prefix",
    "X-Forwarded-Proto",
    "X-Forwarded-User",
    "X-Forwarded-Client-Cert",
    "Forwarded",
    "X-Real-Ip",
    "True-Client-Ip",
    "X-Original-Url",
    "X-Original-Method",
    "X-Rewrite-Url",
    "X-Http-Method-Override",
    "X-Auth-Request-User",
    "X-Webauth-User",
    "X-Ostiary-User",
    "X-Ssl-Client-Verify",
    "Proxy",
    "Audit-Id",
)
HOP_BY_HOP = ("Keep-Alive", "Proxy-Connection", "TE", "Trailer", "Transfer-Encoding", "Upgrade", "HTTP2-Settings")
OURS = ("Host", "Content-Length", "Expect", "Proxy-Authorization")


def spellings(name: str) -> set[str]:
    return {
        name,
        name.lower(),
        name.upper(),
        name.replace("-", "_"),
        name.replace("-", "_", 1).upper(),
        name.swapcase(),
        name.replace("-", "."),
    }


def forwarded(*headers: tuple[str, str], names: tuple[HeaderNames, ...] = ()) -> bytes:
    return HeaderFilter(names).scan([(name.encode(), value.encode()) for name, value in headers]).lines


@pytest.mark.parametrize("name", [*CLAIMS, *HOP_BY_HOP, *OURS])
def test_what_a_client_must_not_say_is_dropped_in_every_spelling(name: str) -> None:
    """H1, H3, H5, H7, H8, P1."""
    for spelling in spellings(name):
        assert forwarded((spelling, "root"), ("Accept", "a")) == b"Accept: a\r\n", spelling


@pytest.mark.parametrize("name", CLAIMS)
def test_a_connection_header_that_names_what_we_set_is_refused(name: str) -> None:
    """H2."""
    for spelling in spellings(name):
        with pytest.raises(BadHeader):
            forwarded(("Connection", f"close, {spelling}"))


@pytest.mark.parametrize("name", ["Host", "Content-Length", "Cookie", "Content-Type"])
def test_a_connection_header_that_would_change_the_request_is_refused(name: str) -> None:
    """H2."""
    with pytest.raises(BadHeader):
        forwarded(("Connection", name))


def test_what_connection_lists_is_removed_wherever_it_stands() -> None:
    """H2."""
    headers = (("X-Own", "1"), ("Connection", "keep-alive, x_own"), ("x-own", "2"), ("X-Other", "3"))
    assert forwarded(*headers, ("Connection", "close")) == b"X-Other: 3\r\n"


def test_configured_names_are_dropped_beside_the_default_ones() -> None:
    """H8."""
    names = HeaderNames("X-Who", "X-Team", "X-Number", "X-More-")
    for name in ("X-Who", "x_who", "X-TEAM", "X-Number", "X-More-Scopes", "x_more_scopes", "X-Remote-User"):
        assert forwarded((name, "root"), names=(names,)) == b""
        with pytest.raises(BadHeader):
            forwarded(("Connection", name), names=(names,))
    assert forwarded(("X-Whose", "mine"), names=(names,)) == b"X-Whose: mine\r\n"


def test_the_rest_passes_as_it_is() -> None:
    headers = (("accept", "a"), ("X-Custom_Name", "é"), ("If-Match", '"1"'), ("X-Remotely", "near"), ("Accept", "b"))
    assert forwarded(*headers) == b"".join(f"{name}: {value}\r\n".encode() for name, value in headers)


def test_what_is_meant_for_us_is_told() -> None:
    scanned = HeaderFilter().scan(
        [
            (b"Authorization", b"Bearer x"),
            (b"User-Agent", b"kubectl"),
            (b"Impersonate-User", b"bob \t"),
            (b"impersonate-extra-A_b", b"c"),
            (b"X-Forwarded-For", b"10.0.0.1"),
            (b"X-Forwarded-For", b"10.0.0.2"),
        ]
    )
    assert scanned.authorization == b"Bearer x"
    assert scanned.user_agent == b"kubectl"
    assert scanned.impersonate == [(b"impersonate-user", b"bob"), (b"impersonate-extra-a_b", b"c")]
    assert scanned.forwarded_for == [b"10.0.0.1", b"10.0.0.2"]
    assert scanned.lines == b"User-Agent: kubectl\r\n"


def test_two_credentials_are_refused_and_a_misspelled_one_is_none() -> None:
    """H1."""
    with pytest.raises(BadHeader):
        forwarded(("Authorization", "Bearer a"), ("authorization", "Bearer b"))
    scanned = HeaderFilter().scan([(b"Authori_zation", b"a"), (b"AUTHORIZATION", b"b")])
    assert scanned.authorization == b"b"


@pytest.mark.parametrize("fills", [10_000])
def test_many_names_do_not_make_it_forget_what_to_drop(fills: int) -> None:
    headers = HeaderFilter()
    headers.scan([(b"X-%d" % n, b"") for n in range(fills)])
    assert headers.scan([(b"X-Remote-User", b"root"), (b"Impersonate-User", b"root")]).lines == b""


@given(st.lists(st.tuples(st.sampled_from(CLAIMS + HOP_BY_HOP + OURS), st.integers(0, 2**32)), max_size=8))
@settings(max_examples=100, deadline=None)
def test_no_mixture_of_case_and_underscores_passes(claims: list[tuple[str, int]]) -> None:
    """H1."""
    headers = []
    for name, bits in claims:
        spelled = "".join(
            (c.swapcase() if bits >> n & 1 else c).replace("-", "_" if bits >> (n + 7) & 1 else "-")
            for n, c in enumerate(name)
        )
        if spelled.lower() != "authorization":
            headers.append((spelled, "root"))
    assert forwarded(*headers) == b""


# --- cookies ---


@pytest.mark.parametrize(
    ("cookie", "left"),
    [
        ("a=b", "a=b"),
        ("__Host-ostiary=secret", ""),
        ("__Host-ostiary-login=secret; a=b", "a=b"),
        ("a=b; ostiary-login=secret", "a=b"),
        ("a=b; __Host-ostiary=secret; c=d", "a=b; c=d"),
        ("a=b;__Host-ostiary=secret;c=d", "a=b;c=d"),
        ("not__Host-ostiary=mine; my-ostiary-x=1", "not__Host-ostiary=mine; my-ostiary-x=1"),
        ("a=__Host-ostiary=x", "a=__Host-ostiary=x"),
        (" ; ", ";"),
    ],
)
def test_only_our_cookies_are_removed(cookie: str, left: str) -> None:
    """H8."""
    assert forwarded(("Cookie", cookie)) == (f"Cookie: {left}\r\n".encode() if left else b"")


@pytest.mark.parametrize("cookie", [b"__Host-ostiary=x", b"__Host-ostiary-login=x; Path=/", b"ostiary-login=x"])
def test_an_upstream_cannot_set_our_cookies(cookie: bytes) -> None:
    """H8."""
    assert answered([(b"Set-Cookie", cookie), (b"set-cookie", b"a=b")]) == [b"set-cookie: a=b\r\n"]


def test_of_an_answer_the_framing_and_our_own_headers_are_left_out() -> None:
    dropped = [b"Connection", b"Transfer-Encoding", b"content-length", b"Keep-Alive", b"Upgrade", b"AUDIT-ID"]
    headers = [*((name, b"x") for name in dropped), (b"ETag", b"1"), (b"X-Remote-User", b"theirs")]
    assert answered(headers) == [b"ETag: 1\r\n", b"X-Remote-User: theirs\r\n"]


# --- the token of a WebSocket ---


def protocols(*lines: str) -> list[tuple[bytes, bytes]]:
    return [(b"Sec-WebSocket-Protocol", line.encode()) for line in lines]


BEARER = WEBSOCKET_BEARER.decode()


@pytest.mark.parametrize(
    ("lines", "token", "left"),
    [
        ((f"{BEARER}dG9r, v5.channel.k8s.io",), b"dG9r", b"v5.channel.k8s.io"),
        ((f"v5.channel.k8s.io,{BEARER}dG9r", "v4"), b"dG9r", b"v5.channel.k8s.io|v4"),
        (("v5.channel.k8s.io", f"{BEARER}dG9r"), b"dG9r", b"v5.channel.k8s.io"),
        (("v5.channel.k8s.io",), None, b"v5.channel.k8s.io"),
        ((), None, b""),
    ],
)
def test_the_token_among_the_protocols_is_found_and_not_passed_on(
    lines: tuple[str, ...], token: bytes | None, left: bytes
) -> None:
    """H8."""
    assert websocket_token(protocols(*lines)) == token
    passed = HeaderFilter().scan(protocols(*lines)).lines
    assert passed == b"".join(b"Sec-WebSocket-Protocol: " + line + b"\r\n" for line in left.split(b"|") if line)


@pytest.mark.parametrize(
    "lines",
    [(f"{BEARER}a",), (f"{BEARER}a, {BEARER}b, v5",), (f"{BEARER}a, v5", f"{BEARER}a"), (f"{BEARER}a,, ",)],
)
def test_two_tokens_or_one_without_a_protocol_are_refused(lines: tuple[str, ...]) -> None:
    with pytest.raises(BadHeader):
        websocket_token(protocols(*lines))
    assert b"bearer" not in HeaderFilter().scan(protocols(*lines)).lines


# --- who asks ---


def test_each_group_is_one_line_and_nothing_in_it_is_a_separator() -> None:
    """H6, S14."""
    groups = ("a,system:masters", "b|c", "d:e", "two words", "système", "x=y;z", '"quoted"', "日本")
    user = UserInfo("alice@example.test", "7", groups, (("Scopes/x", ("a", "b,c")),))
    lines = impersonation(user).decode().split("\r\n")
    assert lines == [
        "Impersonate-User: alice@example.test",
        "Impersonate-Uid: 7",
        *(f"Impersonate-Group: {group}" for group in groups),
        "Impersonate-Extra-%53copes%2Fx: a",
        "Impersonate-Extra-%53copes%2Fx: b,c",
        "",
    ]


def test_a_group_that_the_api_server_adds_itself_is_not_asked_for() -> None:
    """It would need a permission of its own there, which the role of a gateway does not have."""
    user = UserInfo("noxu", groups=("system:authenticated", "dev"))
    assert impersonation(user) == b"Impersonate-User: noxu\r\nImpersonate-Group: dev\r\n"
    account = UserInfo("system:serviceaccount:shop:builder")
    assert impersonation(impersonated(account)) == b"Impersonate-User: system:serviceaccount:shop:builder\r\n"


@pytest.mark.parametrize(
    "bad", ["a\r\nImpersonate-Group: system:masters", "a\nb", "a\rb", "a\0b", "a\x7f", "\ta", " a", "a ", "", "\ud800"]
)
def test_a_name_that_a_header_cannot_carry_is_refused(bad: str) -> None:
    """H6."""
    for user in (
        UserInfo(bad),
        UserInfo("alice", "", (bad,)),
        UserInfo("alice", "", (), (("k", (bad,)),)),
    ):
        with pytest.raises(BadHeader):
            impersonation(user)
    if bad:
        with pytest.raises(BadHeader):
            impersonation(UserInfo("alice", bad))


def test_configured_names_are_used() -> None:
    names = HeaderNames("X-Who", "X-Team", "X-Number", "X-More-")
    user = UserInfo("alice", "7", ("dev",), (("a.b_c", ("v",)),))
    assert identity_lines(user, names) == b"X-Who: alice\r\nX-Number: 7\r\nX-Team: dev\r\nX-More-a.b_c: v\r\n"


@given(st.text(min_size=1, max_size=20))
@settings(max_examples=200, deadline=None)
def test_any_key_of_an_extra_comes_out_as_kube_apiserver_reads_it(key: str) -> None:
    """H6. It lowers the name, then undoes the escapes."""
    from urllib.parse import unquote

    if any(0xD800 <= ord(c) <= 0xDFFF for c in key):
        return
    line = identity_lines(UserInfo("a", "", (), ((key, ("v",)),)), HeaderNames()).split(b"\r\n")[1]
    name, _, value = line.partition(b": ")
    assert value == b"v"
    assert unquote(name.decode("ascii").lower().removeprefix("x-remote-extra-")) == key


@pytest.mark.parametrize(
    "name",
    [
        *("X-Authenticated-User", "X-Authenticated-Email", "X-User", "X-Auth-User", "X-Goog-Authenticated-User-Email"),
        *(
            "X-Goog-IAP-JWT-Assertion",
            "Client-Cert",
            "Client-Cert-Chain",
            "X-Client-Cert",
            "X-MS-CLIENT-PRINCIPAL-NAME",
        ),
        *(
            "X-Amzn-Oidc-Identity",
            "Cf-Access-Authenticated-User-Email",
            "X-Pomerium-Claim-Email",
            "x_user",
            "X_Auth_User",
        ),
        *("X-User-Email", "X-Groups", "X-Userinfo", "X-Jwt-Assertion", "X-Consumer-Username"),
    ],
)
def test_whatever_other_proxies_tell_programs_about_a_user_is_dropped(name: str) -> None:
    scanned = HeaderFilter().scan([(name.encode(), b"root"), (b"X-Own", b"1")])
    assert scanned.lines == b"X-Own: 1\r\n"


@pytest.mark.parametrize(
    ("drop", "name", "passes"),
    [
        ("X-Employee", "X-Employee", False),
        ("X-Employee", "x_employee", False),
        ("X-Employee", "X-Employee-Id", True),
        ("X-Employee*", "X-Employee-Id", False),
        ("X-Employee*", "X-Other", True),
    ],
)
def test_an_operator_can_have_more_dropped(drop: str, name: str, passes: bool) -> None:
    scanned = HeaderFilter(drop=[drop]).scan([(name.encode(), b"root")])
    assert bool(scanned.lines) is passes
    if not passes:
        with pytest.raises(BadHeader):
            HeaderFilter(drop=[drop]).scan([(b"Connection", name.encode())])


@pytest.mark.parametrize(
    ("cookie", "passes"),
    [
        (b"a=b", True),
        (b"a=; Path=/", True),
        (b"=__Host-ostiary=stolen", False),
        (b" =__Host-ostiary=stolen; Path=/", False),
        (b"__Host-ostiary", False),
        (b"nameless", False),
        (b"; Path=/", False),
        (b"", False),
        (b" __Host-ostiary-session=x", False),
        (b"__host-OSTIARY=x", False),
        (b"ostiary-session=x", False),
    ],
)
def test_an_upstream_sets_neither_our_cookies_nor_one_without_a_name(cookie: bytes, passes: bool) -> None:
    assert bool(answered([(b"Set-Cookie", cookie)])) is passes
