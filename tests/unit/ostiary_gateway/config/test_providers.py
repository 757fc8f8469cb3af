"""Providers of a configuration: one that does not keep its contract stops the start, with the place and a remedy."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ostiary.errors import ConfigurationError
from ostiary.model import Problem
from ostiary_gateway.config import load
from tests.unit.ostiary_gateway import acme, foreign

HEAD = "apiVersion: ostiary.dev/v1\nkind: Gateway\nstore: {type: memory}\n"
CHAIN = "authorization: {chain: [{name: all, type: allow_all}]}\n"


@pytest.fixture(scope="module", autouse=True)
def foreign_package(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        acme.install(tmp_path_factory.mktemp("site"), patch, foreign.ENTRY_POINTS, package="foreign")
        yield


def problem_of(tmp_path: Path, section: str) -> Problem:
    path = tmp_path / "gateway.yaml"
    path.write_text(HEAD + section)
    with pytest.raises(ConfigurationError) as raised:
        load(path)
    (problem,) = raised.value.problems
    return problem


def test_a_misspelt_ability_stops_the_start(tmp_path: Path) -> None:
    problem = problem_of(tmp_path, CHAIN + "identity: [{name: people, type: misspelt}]")
    assert problem.message == (
        "it is not a valid identity provider: Misspelt.revalidates is not an ability of the gateway's providers"
    )
    assert (problem.place.path, problem.place.line) == ("identity[0].type", 5)
    assert problem.hint is not None
    assert problem.hint.startswith("did you mean revalidate?")


def test_an_ability_that_is_not_async_stops_the_start(tmp_path: Path) -> None:
    problem = problem_of(tmp_path, CHAIN + "identity: [{name: people, type: not_async}]")
    assert problem.message == "it is not a valid identity provider: NotAsync.revalidate is not async"
    assert problem.hint == "define it as: async def revalidate(self, user)"


def test_an_identity_provider_that_is_used_for_groups_must_be_a_group_provider(tmp_path: Path) -> None:
    people = "identity: [{name: people, type: anybody}]\ngroups: [{name: teams, provider: people}]"
    problem = problem_of(tmp_path, CHAIN + people)
    assert problem.message == '"people" is not a valid group provider: it has no groups_of'
    assert problem.place.path == "groups[0].provider"
