"""What of a token's claims rules can look at."""

from __future__ import annotations

from typing import Any

import pytest

from ostiary_gateway.providers.workload.platforms import TokenClaims


def test_texts_numbers_and_lists_of_texts_can_be_matched(subtests: pytest.Subtests) -> None:
    cases: list[tuple[Any, tuple[str, ...]]] = [
        ("main", ("main",)),
        ("", ()),
        (True, ("true",)),
        (False, ("false",)),
        (7, ("7",)),
        (0.5, ()),
        (None, ()),
        (["a", "", "b"], ("a", "b")),
        (["a", 7], ()),
        ({"a": "b"}, ()),
        ([["a"]], ()),
    ]
    for value, texts in cases:
        with subtests.test(value=value, texts=texts):
            claims = TokenClaims({"claim": value, "sub": "x"})
            assert claims.get("claim") == texts
            assert dict(claims) == ({"sub": ("x",)} | ({"claim": texts} if texts else {}))
            assert len(claims) == len(dict(claims))
            assert ("claim" in claims) is bool(texts)


def test_what_a_platform_knows_comes_before_what_a_token_says() -> None:
    claims = TokenClaims({"namespace": "claimed", "pod": "claimed"}, {"namespace": "shop", "pod": None})
    assert (claims["namespace"], claims.get("pod")) == (("shop",), ())
    with pytest.raises(KeyError):
        claims["pod"]
