"""Challenges of registries: as they are sent, as the RFC allows them, and as nobody should send them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ostiary.wire.www_authenticate import ChallengeError, WwwChallenge, find_challenge, parse_challenges

ACR = 'Bearer realm="https://team.azurecr.io/oauth2/token",service="team.azurecr.io"'


def test_headers_are_read_as_they_are_meant(subtests: pytest.Subtests) -> None:
    cases: list[tuple[str, list[WwwChallenge]]] = [
        ("", []),
        (" , ,", []),
        ('Basic realm="local"', [WwwChallenge("basic", {"realm": "local"})]),
        ("Basic", [WwwChallenge("basic")]),
        (
            ACR,
            [WwwChallenge("bearer", {"realm": "https://team.azurecr.io/oauth2/token", "service": "team.azurecr.io"})],
        ),
        (
            "Bearer realm=https://auth.example.com/token,service=registry",
            [WwwChallenge("bearer", {"realm": "https://auth.example.com/token", "service": "registry"})],
        ),
        (
            'Bearer realm="a, b=\\"c\\"" , scope = "x y", Basic realm=z',
            [WwwChallenge("bearer", {"realm": 'a, b="c"', "scope": "x y"}), WwwChallenge("basic", {"realm": "z"})],
        ),
        ("Negotiate, NTLM", [WwwChallenge("negotiate"), WwwChallenge("ntlm")]),
        (
            "Negotiate YII==, Basic realm=z",
            [WwwChallenge("negotiate", token68="YII=="), WwwChallenge("basic", {"realm": "z"})],
        ),
        ('BEARER REALM="X"', [WwwChallenge("bearer", {"realm": "X"})]),
        ('Basic realm="first", realm="second"', [WwwChallenge("basic", {"realm": "first"})]),
        ('Basic realm=""', [WwwChallenge("basic", {"realm": ""})]),
    ]
    for header, challenges in cases:
        with subtests.test(header=header, challenges=challenges):
            assert list(parse_challenges(header)) == challenges


def test_what_is_no_challenge_is_refused_without_quoting_it(subtests: pytest.Subtests) -> None:
    for header in ['Basic realm="open', '"Basic"', "Basic realm=a b", "=", 'Basic realm="a"x', "Basic\n"]:
        with subtests.test(header=header):
            with pytest.raises(ChallengeError) as caught:
                parse_challenges(header)
            assert header.strip() not in str(caught.value) or header == "="


def test_the_first_challenge_of_a_scheme_is_found_whatever_its_case() -> None:
    header = f'Basic realm="x", {ACR}'
    found = find_challenge(header, "BEARER")
    assert found is not None
    assert found.realm == "https://team.azurecr.io/oauth2/token"
    assert find_challenge(header, "digest") is None


# --- any challenge that can be written can be read ---

TOKEN = st.text("abcXYZ019!#$%&'*+.^_`|~-", min_size=1, max_size=8)
VALUE = st.text(st.characters(codec="latin-1", exclude_categories=["Cc"]), max_size=12)
SPACE = st.sampled_from(["", " ", "\t", "  "])


@st.composite
def written(draw: Any) -> tuple[str, list[WwwChallenge]]:
    parts, challenges = [], []
    for _ in range(draw(st.integers(1, 3))):
        scheme = draw(TOKEN)
        parameters = draw(st.dictionaries(TOKEN.map(str.lower), VALUE, min_size=1, max_size=3))
        text = f",{draw(SPACE)}".join(
            f"{name}{draw(SPACE)}={draw(SPACE)}"
            + '"'
            + value.replace("\\", "\\\\").replace('"', '\\"')
            + '"'
            + draw(SPACE)
            for name, value in parameters.items()
        )
        parts.append(f"{scheme} {text}")
        challenges.append(WwwChallenge(scheme.lower(), parameters))
    return f",{draw(SPACE)}".join(parts), challenges


@given(written())
def test_what_is_written_by_the_rules_is_read_back(pair: tuple[str, list[WwwChallenge]]) -> None:
    header, challenges = pair
    assert list(parse_challenges(header)) == challenges


@given(st.text('Basic =,"\\ \trealm'))
def test_any_text_is_read_or_refused_and_nothing_else_happens(header: str) -> None:
    try:
        found = parse_challenges(header)
    except ChallengeError:
        return
    assert all(one.scheme == one.scheme.lower() != "" for one in found)
