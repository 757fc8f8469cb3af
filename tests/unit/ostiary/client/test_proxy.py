"""Which proxy stands before a server: the rules of Go's clients, so that kubectl and we agree."""

from __future__ import annotations

import ipaddress
from urllib.parse import urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ostiary.client.proxy import proxy_for
from ostiary.errors import TransportError

PROXY = "http://proxy.test:3128"
CANARY = "canary-password"


def chosen(server: str, *, configured: str | None = None, **environ: str) -> str | None:
    return proxy_for(urlsplit(server), configured=configured, environ=environ)


def is_exempt(server: str, no_proxy: str) -> bool:
    return chosen(server, HTTPS_PROXY=PROXY, HTTP_PROXY=PROXY, NO_PROXY=no_proxy) is None


# --- whose word counts ---


def test_without_any_word_the_server_is_dialled_directly() -> None:
    assert chosen("https://api.test") is None


def test_the_kubeconfig_wins_over_the_environment() -> None:
    assert chosen("https://api.test", configured="http://first.test:1", HTTPS_PROXY=PROXY) == "http://first.test:1"


@pytest.mark.parametrize("server", ["https://api.test", "https://localhost", "https://127.0.0.1:6443"])
def test_the_kubeconfig_wins_over_every_exemption(server: str) -> None:
    assert chosen(server, configured=PROXY, NO_PROXY="*") == PROXY


@pytest.mark.parametrize("name", ["HTTPS_PROXY", "https_proxy"])
def test_an_https_server_has_the_proxy_for_https(name: str) -> None:
    assert chosen("https://api.test", **{name: PROXY}) == PROXY
    assert chosen("http://api.test", **{name: PROXY}) is None


@pytest.mark.parametrize("name", ["HTTP_PROXY", "http_proxy"])
def test_an_http_server_has_the_proxy_for_http(name: str) -> None:
    assert chosen("http://api.test", **{name: PROXY}) == PROXY
    assert chosen("https://api.test", **{name: PROXY}) is None


def test_a_proxy_for_all_is_not_a_word_of_go() -> None:
    assert chosen("https://api.test", ALL_PROXY=PROXY, all_proxy=PROXY) is None


def test_capitals_win_and_an_empty_value_is_none() -> None:
    assert chosen("https://api.test", HTTPS_PROXY=PROXY, https_proxy="http://other.test") == PROXY
    assert chosen("https://api.test", HTTPS_PROXY="", https_proxy=PROXY) == PROXY
    assert chosen("https://api.test", HTTPS_PROXY="", https_proxy="") is None
    assert chosen("https://api.test", HTTPS_PROXY=PROXY, NO_PROXY="", no_proxy="api.test") is None


def test_a_proxy_of_the_environment_may_leave_out_its_scheme() -> None:
    assert chosen("https://api.test", HTTPS_PROXY="proxy.test:3128") == PROXY
    assert chosen("https://api.test", HTTPS_PROXY="user:word@proxy.test") == "http://user:word@proxy.test"


@pytest.mark.parametrize(
    "server",
    [
        "https://localhost",
        "https://[::ffff:127.0.0.1]",
        "https://127.0.0.1",
        "https://127.9.8.7:1",
        "https://[::1]:6443",
    ],
)
def test_loopback_is_never_reached_through_a_proxy_of_the_environment(server: str) -> None:
    assert chosen(server, HTTPS_PROXY=PROXY) is None


@pytest.mark.parametrize("server", ["https://localhost.test", "https://128.0.0.1", "https://[::2]"])
def test_what_only_looks_like_loopback_is(server: str) -> None:
    assert chosen(server, HTTPS_PROXY=PROXY) == PROXY


# --- no_proxy ---


def test_a_rule_of_no_proxy(subtests: pytest.Subtests) -> None:
    cases = [
        # A name means itself and everything below it.
        ("example.test", "https://example.test", True),
        ("example.test", "https://api.example.test:6443", True),
        ("example.test", "https://a.b.example.test", True),
        ("example.test", "https://badexample.test", False),
        ("example.test", "https://example.test.evil", False),
        # With a leading dot, or a star and a dot, only what is below it.
        (".example.test", "https://api.example.test", True),
        (".example.test", "https://example.test", False),
        ("*.example.test", "https://api.example.test", True),
        ("*.example.test", "https://example.test", False),
        (".example.test", "https://badexample.test", False),
        # A star elsewhere is no wildcard.
        ("api.*", "https://api.test", False),
        ("a*.test", "https://api.test", False),
        # A port, when there is one, must be the same; the scheme has its own.
        ("example.test:6443", "https://example.test:6443", True),
        ("example.test:6443", "https://api.example.test:6443", True),
        ("example.test:6443", "https://example.test", False),
        ("example.test:443", "https://example.test", True),
        ("example.test:80", "http://example.test", True),
        ("example.test:80", "https://example.test", False),
        (".example.test:443", "https://api.example.test", True),
        # Addresses are compared as addresses.
        ("10.0.0.1", "https://10.0.0.1:6443", True),
        ("10.0.0.1", "https://10.0.0.10:6443", False),
        ("10.0.0.1:6443", "https://10.0.0.1:6443", True),
        ("10.0.0.1:443", "https://10.0.0.1:6443", False),
        ("2001:db8::1", "https://[2001:db8:0:0::1]", True),
        # In brackets only with a port, as in Go.
        ("[2001:db8::1]", "https://[2001:db8::1]", False),
        ("[2001:db8::1]:", "https://[2001:db8::1]", True),
        ("::ffff:10.0.0.1", "https://10.0.0.1", True),
        ("10.0.0.0/8", "https://[::ffff:10.0.0.1]", True),
        ("::ffff:0:0/96", "https://10.0.0.1", True),
        ("[2001:db8::1]:6443", "https://[2001:db8::1]:6443", True),
        ("[2001:db8::1]:6443", "https://[2001:db8::1]", False),
        ("2001:db8::1", "https://[2001:db8::2]", False),
        # Networks hold addresses, never names; their host bits do not count.
        ("10.0.0.0/8", "https://10.255.0.1:6443", True),
        ("10.1.2.3/8", "https://10.255.0.1", True),
        ("10.0.0.0/8", "https://11.0.0.1", False),
        ("10.0.0.0/8", "https://api.test", False),
        ("0.0.0.0/0", "https://203.0.113.9", True),
        ("0.0.0.0/0", "https://[2001:db8::1]", False),
        ("2001:db8::/32", "https://[2001:db8:1::1]:6443", True),
        ("2001:db8::/32", "https://[2001:db9::1]", False),
        # A star alone is everything, wherever it stands.
        ("*", "https://api.test", True),
        ("other.test, *", "https://10.0.0.1", True),
        # Capitals and blanks do not matter; the dot that ends a full name does.
        ("EXAMPLE.test", "https://api.Example.TEST", True),
        ("a.test ,  example.test", "https://example.test", True),
        ("example.test", "https://example.test.", False),
        ("example.test.", "https://example.test.", True),
        ("example.test:", "https://example.test", True),
        # Both spellings of an international name are the same name.
        ("münchen.test", "https://xn--mnchen-3ya.test", True),
        ("xn--mnchen-3ya.test", "https://münchen.test", True),
        # What is not a rule exempts nothing.
        ("", "https://api.test", False),
        (",, ,", "https://api.test", False),
        (".", "https://api.test", False),
        (":443", "https://api.test", False),
        ("10.0.0.0/99", "https://10.0.0.1", False),
        ("api.test/24", "https://api.test", False),
        ("https://api.test", "https://api.test", False),
    ]
    for rules, server, exempt in cases:
        with subtests.test(rules=rules, server=server, exempt=exempt):
            assert is_exempt(server, rules) is exempt


labels = st.from_regex(r"[a-z][a-z0-9]{0,8}", fullmatch=True)
names = st.lists(labels, min_size=1, max_size=4).map(".".join).filter(lambda name: name != "localhost")


@given(names, labels)
def test_a_name_always_exempts_itself_and_what_is_below_it(name: str, label: str) -> None:
    assert is_exempt(f"https://{name}", name)
    assert is_exempt(f"https://{label}.{name}", name)
    assert is_exempt(f"https://{label}.{name}", f".{name}")
    assert not is_exempt(f"https://{name}", f".{name}")
    assert not is_exempt(f"https://x{name}", name)


@given(st.ip_addresses(v=4).filter(lambda ip: not ip.is_loopback), st.integers(0, 32))
def test_a_network_exempts_exactly_its_addresses(address: ipaddress.IPv4Address, bits: int) -> None:
    network = ipaddress.ip_network(f"{address}/{bits}", strict=False)
    assert is_exempt(f"https://{address}", str(network))
    outside = ipaddress.IPv4Address(int(address) ^ (1 << 32 >> bits)) if bits else None
    if outside is not None and not outside.is_loopback:
        assert not is_exempt(f"https://{outside}", str(network))


@given(st.text(), names)
def test_no_text_in_no_proxy_is_an_error(rules: str, name: str) -> None:
    assert is_exempt(f"https://{name}", rules) in (True, False)


# --- addresses that cannot be used ---

UNUSABLE = [
    "ftp://proxy.test",
    "socks4://proxy.test",
    "HTTP//proxy.test",
    "http://",
    "http://:3128",
    "http:///path",
    "://proxy.test",
    "http://proxy.test:port",
    "http://proxy.test:0",
    "http://proxy.test:99999",
    "http://[::1",
    "http://[not-an-address]",
    f"user:{CANARY}@proxy.test:3128",
    f"http:/user:{CANARY}@proxy.test",
    f"ftp://user:{CANARY}@proxy.test",
    f"http://user:{CANARY}@",
    f"http://user:{CANARY}@:3128",
    f"http://user:{CANARY}@proxy.test:{CANARY}",
    f"http://user:{CANARY}/with-a-slash@proxy.test",
    f"http://user:{CANARY}#with-a-hash@proxy.test",
    f"http://user:{CANARY}@[::1",
    f"{CANARY}:@proxy.test:3128",
]


def test_an_address_that_cannot_be_used_is_an_error_that_shows_no_password(subtests: pytest.Subtests) -> None:
    for url in UNUSABLE:
        with subtests.test(url=url):
            with pytest.raises(TransportError) as caught:
                chosen("https://api.test", configured=url)
            assert caught.value.code == "proxy-invalid"
            assert caught.value.hint
            assert CANARY not in str(caught.value) + repr(caught.value)
            assert caught.value.__cause__ is None
            assert caught.value.__suppress_context__ or caught.value.__context__ is None


def test_an_address_of_the_environment_is_checked_too() -> None:
    with pytest.raises(TransportError):
        chosen("https://api.test", HTTPS_PROXY="ftp://proxy.test")


def test_an_address_that_is_not_needed_is_not_checked() -> None:
    assert chosen("https://api.test", HTTPS_PROXY="ftp://proxy.test", NO_PROXY="*") is None
    assert chosen("https://api.test", HTTP_PROXY="ftp://proxy.test") is None


def test_an_address_that_can_be_used_is_given_as_it_was_written(subtests: pytest.Subtests) -> None:
    cases = [
        "http://proxy.test",
        "https://proxy.test:3128",
        "socks5://proxy.test:1080",
        "HTTP://proxy.test",
        "http://[2001:db8::1]:3128",
        f"http://user:{CANARY}@proxy.test:3128/",
    ]
    for url in cases:
        with subtests.test(url=url):
            assert chosen("https://api.test", configured=url) == url


@given(st.text())
def test_any_text_is_an_address_or_a_clear_error(text: str) -> None:
    try:
        found = chosen("https://api.test", configured=text)
    except TransportError:
        return
    assert found == (text or None)
