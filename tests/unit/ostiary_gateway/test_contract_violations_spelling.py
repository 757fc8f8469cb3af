"""Which names are taken for a misspelt ability, and which are left alone."""

from __future__ import annotations

import pytest

from ostiary_gateway.contract_violations import is_misspelt


def test_a_slip_of_the_pen_is_noticed(subtests: pytest.Subtests) -> None:
    cases = [
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
    ]
    for name, meant in cases:
        with subtests.test(name=name, meant=meant):
            assert is_misspelt(name, meant)


def test_another_word_is_left_alone(subtests: pytest.Subtests) -> None:
    cases = [
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
    ]
    for name, meant in cases:
        with subtests.test(name=name, meant=meant):
            assert not is_misspelt(name, meant)
