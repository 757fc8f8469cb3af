"""Any text at all as the scope of a token: refused with its cause, or read as what its canonical text is read as.

`one_input` takes bytes and raises if something is wrong, so that a fuzzer can drive it as well:

    atheris.Setup(sys.argv, one_input); atheris.Fuzz()
"""

from __future__ import annotations

from hypothesis import example, given, settings
from hypothesis import strategies as st

from ostiary.core.scopes import NOTHING, decode, narrow, parse_scope
from ostiary.errors import ScopeError

PIECES = (
    *("get", "list", "*", "GET", "create", "discovery", "pods", "pods/log", "pods/*", "deployments.apps", "*/log"),
    *("-n", "-A", "--name", "--upstream", "--namespace", "=", "-x", ",", ";", " ", "  ", "\t", "/", "/healthz", "/*"),
    *("shop", "a,b", "", "'", '"', "\\", "\x00", "\x1b", "é", "\ud800", "\u202e", "-"),
)


def one_input(data: bytes) -> None:
    text = data.decode("utf-8", "surrogateescape")
    try:
        scope = parse_scope(text)
    except ScopeError as error:
        check_refusal(error)
        return
    canonical = str(scope)
    assert parse_scope(canonical) == scope
    assert str(parse_scope(canonical)) == canonical
    assert not scope.first_beyond(scope)
    assert canonical.isprintable()
    delegation = narrow(None, scope)
    assert decode(delegation.encode()) == delegation != NOTHING


def check_refusal(error: ScopeError) -> None:
    assert error.cause
    assert not {"\x00", "\x1b", "\u202e"} & set(str(error))


@given(st.binary(max_size=60))
@settings(max_examples=150, deadline=None)
def test_random_bytes(data: bytes) -> None:
    one_input(data)


@given(st.lists(st.sampled_from(PIECES), max_size=16))
@settings(max_examples=400, deadline=None)
@example(["get", " ", "pods", " ", "-n", " ", "shop", ";", "discovery"])
@example(["get", " ", "pods", " ", "-A", " ", "--name", " ", "shop", ",", "-x"])
def test_what_looks_like_scopes(pieces: list[str]) -> None:
    one_input("".join(pieces).encode("utf-8", "surrogateescape" if "\ud800" not in pieces else "replace"))
