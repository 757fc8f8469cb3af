"""Headers by which a client could claim to be somebody."""

from __future__ import annotations

import pytest

from ostiary_gateway.extauth.claims import CLEARED, OVERWRITTEN, CarriedHeaders, ClaimsRefused, cleared
from ostiary_gateway.extauth.identity_headers import answer_names
from ostiary_gateway.http1.headers import BadHeader, HeaderFilter, normal_name

FILTER = ClaimsRefused(answer_names(["scope"]), drop=("X-Mine", "X-Ours-*"))


def test_a_claim_that_the_proxy_would_let_pass_is_refused(subtests: pytest.Subtests) -> None:
    cases = [
        *("X_Remote_User", "X-Remote_User", "X.Remote.User", "X-Remote-Extra-Other", "Remote-Anything"),
        *("X-Ostiary-Anything", "X-Forwarded-Anything", "Impersonate-Extra-Scope", "X-Ours-1", "X_Mine"),
    ]
    for name in cases:
        with subtests.test(name=name), pytest.raises(BadHeader):
            FILTER.scan([(name.encode(), b"evil")])


def test_what_the_printed_configuration_overwrites_or_clears_passes_the_door(subtests: pytest.Subtests) -> None:
    cases = [
        *("X-Remote-User", "x-remote-group", "X-Remote-Extra-Scope", "X-Mine", "Authorization", "Impersonate-User"),
        *("X-Forwarded-For", "X-Real-IP", "Accept", "Cookie", "X-Case"),
    ]
    for name in cases:
        with subtests.test(name=name):
            FILTER.scan([(name.encode(), b"x")])


def test_all_that_is_cleared_is_a_claim_to_our_own_proxy_as_well() -> None:
    ours = HeaderFilter()
    assert [name for name in CLEARED if not ours.is_protected(normal_name(name.encode()))] == []
    assert not set(CLEARED) & {name for name in OVERWRITTEN if name != "x-real-ip"}


def test_the_operators_own_names_are_cleared_unless_they_are_patterns() -> None:
    assert set(cleared(("X-Mine", "X-Ours-*"))) - set(CLEARED) == {"x-mine"}


def test_a_token_among_websocket_protocols_is_refused_because_the_upstream_would_see_it() -> None:
    protocols = b"v4.channel.k8s.io, base64url.bearer.authorization.k8s.io.b3N0"
    for each in (FILTER, CarriedHeaders()):
        with pytest.raises(BadHeader, match="Authorization"):
            each.scan([(b"Sec-WebSocket-Protocol", protocols)])
        each.scan([(b"Sec-WebSocket-Protocol", b"v4.channel.k8s.io")])
