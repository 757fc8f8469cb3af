"""Which headers pass: a client's claims never, ours always, one line each."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ostiary_gateway.http1.headers import WEBSOCKET_BEARER, BadHeader, HeaderFilter, HeaderNames, websocket_token

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


def test_what_a_client_must_not_say_is_dropped_in_every_spelling(subtests: pytest.Subtests) -> None:
    """H1, H3, H5, H7, H8, P1."""
    for name in [*CLAIMS, *HOP_BY_HOP, *OURS]:
        with subtests.test(name=name):
            for spelling in spellings(name):
                assert forwarded((spelling, "root"), ("Accept", "a")) == b"Accept: a\r\n", spelling


def test_a_connection_header_that_names_what_we_set_is_refused(subtests: pytest.Subtests) -> None:
    """H2."""
    for name in CLAIMS:
        with subtests.test(name=name):
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


def test_only_our_cookies_are_removed(subtests: pytest.Subtests) -> None:
    """H8."""
    cases = [
        ("a=b", "a=b"),
        ("__Host-ostiary=secret", ""),
        ("__Host-ostiary-login=secret; a=b", "a=b"),
        ("a=b; ostiary-login=secret", "a=b"),
        ("a=b; __Host-ostiary=secret; c=d", "a=b; c=d"),
        ("a=b;__Host-ostiary=secret;c=d", "a=b;c=d"),
        ("not__Host-ostiary=mine; my-ostiary-x=1", "not__Host-ostiary=mine; my-ostiary-x=1"),
        ("a=__Host-ostiary=x", "a=__Host-ostiary=x"),
        (" ; ", ";"),
    ]
    for cookie, left in cases:
        with subtests.test(cookie=cookie, left=left):
            assert forwarded(("Cookie", cookie)) == (f"Cookie: {left}\r\n".encode() if left else b"")


COOKIES = st.tuples(
    st.sampled_from(["a", "theme", "__Host-ostiary", "__Host-ostiary-app-wiki", "ostiary-session", "x-ostiary-y"]),
    st.text(st.characters(min_codepoint=0x21, max_codepoint=0x7E, exclude_characters=";"), max_size=5),
)


@given(st.lists(st.lists(COOKIES, min_size=1, max_size=4), max_size=4))
def test_the_cookies_for_another_proxy_are_those_of_the_lines_in_their_order_and_none_is_ours(
    lines: list[list[tuple[str, str]]],
) -> None:
    """H8."""
    texts = ["; ".join(f"{name}={value}" for name, value in line) for line in lines]
    scanned = HeaderFilter().scan([(b"Cookie", text.encode()) for text in texts])
    every = [cookie for line in lines for cookie in line]
    theirs = [f"{name}={value}" for name, value in every if not name.startswith(("__Host-ostiary", "ostiary-"))]
    assert scanned.cookies.decode().replace("; ", ";").split(";") == (theirs or [""])
    assert b"\r" not in scanned.cookies
    forwarded_lines = scanned.lines.decode().replace("Cookie: ", "").replace("\r\n", ";").replace("; ", ";")
    assert forwarded_lines.rstrip(";") == ";".join(theirs)


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


def test_whatever_other_proxies_tell_programs_about_a_user_is_dropped(subtests: pytest.Subtests) -> None:
    cases = [
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
        *("X-Authentik-Username", "X-Authentik-Groups", "X-Authentik-Meta-App", "x_authentik_uid", "X-Client-Cn"),
        *("Tailscale-User-Login", "Tailscale-User-Name", "Tailscale_User_Login"),
        *("Cf-Connecting-Ip", "Cf-Connecting-IPv6", "Fastly-Client-IP", "X-Cluster-Client-IP", "x_cluster_client_ip"),
    ]
    for name in cases:
        with subtests.test(name=name):
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
