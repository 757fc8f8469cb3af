"""Which names are taken for a misspelt ability, and which are left alone."""

from __future__ import annotations

import pytest

from ostiary.core.abilities.spelling import is_misspelt


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("revalidates", "revalidate"),
        ("revaildate", "revalidate"),
        ("revalidata", "revalidate"),
        ("revaildates", "revalidate"),
        ("askAgain", "ask_again"),
        ("ask_agian", "ask_again"),
        ("probes", "probe"),
        ("porbe", "probe"),
        ("cache_keys", "cache_key"),
        ("whocan", "who_can"),
        ("Lint", "lint"),
        ("share_between_processes", "shared_between_processes"),
        ("return_by_post", "returns_by_post"),
    ],
)
def test_a_slip_of_the_pen_is_noticed(name: str, meant: str) -> None:
    assert is_misspelt(name, meant)


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("validate", "revalidate"),
        ("invalidate", "revalidate"),
        ("prove", "probe"),
        ("roles_for", "rules_for"),
        ("clone", "close"),
        ("list", "lint"),
        ("hint", "lint"),
        ("paths", "path"),
        ("division", "revision"),
        ("check", "probe"),
    ],
)
def test_another_word_is_left_alone(name: str, meant: str) -> None:
    assert not is_misspelt(name, meant)
