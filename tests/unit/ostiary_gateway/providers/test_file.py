"""Groups in a file: what it may hold, and that it is looked at again."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ostiary.core.yaml import ConfigReader, parse
from ostiary.errors import ProviderError
from ostiary.model import UserInfo
from ostiary_gateway.catalog import Context
from ostiary_gateway.interfaces.identity import LoginRequest
from ostiary_gateway.providers.file import FileGroups
from ostiary_gateway.testing import FakeClock

REQUEST = LoginRequest("GET", "/auth")
# What YAML can hold at all in one line, and no lone surrogates: those are no text.
NAMES = st.text(
    st.characters(exclude_categories=["Cs", "Cc", "Zl", "Zp"], exclude_characters="\ufffe\uffff"),
    min_size=1,
    max_size=8,
)


async def groups_of(provider: FileGroups, username: str, relevant: set[str]) -> list[str]:
    return [found.group for found in await provider.groups_of(UserInfo(username), relevant, REQUEST)]


@settings(
    max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(groups=st.dictionaries(NAMES, st.lists(NAMES, max_size=3), max_size=4), username=NAMES)
async def test_names_come_back_as_they_are_written(tmp_path: Path, groups: dict[str, list[str]], username: str) -> None:
    """S14."""
    path = tmp_path / "groups.yaml"
    path.write_text(json.dumps(groups, ensure_ascii=False))
    expected = sorted(group for group, members in groups.items() if username in members)
    assert await groups_of(FileGroups(path=path), username, set(groups) | {"other"}) == expected


async def test_who_is_added_is_a_member_at_the_next_login(tmp_path: Path, clock: FakeClock) -> None:
    """S36."""
    path = tmp_path / "groups.yaml"
    path.write_text("developers: []")
    provider = FileGroups(path=path, clock=clock)
    assert await groups_of(provider, "alice", {"developers"}) == []
    path.write_text("developers: [alice]")
    assert await groups_of(provider, "alice", {"developers"}) == ["developers"]


async def test_where_a_group_is_known_from_is_told(tmp_path: Path) -> None:
    path = tmp_path / "groups.yaml"
    path.write_text("developers: [alice]")
    (found,) = await FileGroups(path=path).groups_of(UserInfo("alice"), {"developers"}, REQUEST)
    assert found.source == "file groups.yaml"


async def test_a_file_with_a_mistake_lets_nobody_into_a_group(
    tmp_path_factory: pytest.TempPathFactory, subtests: pytest.Subtests
) -> None:
    """S37, T7."""
    for text in ["a: [", "- a", "a: alice", "a: [1]", "a: ['']", "'': [alice]", "a: [x]\na: [y]"]:
        with subtests.test(text=text):
            tmp_path = tmp_path_factory.mktemp("case")
            path = tmp_path / "groups.yaml"
            path.write_text("a: [alice]")
            provider = FileGroups(path=path)
            path.write_text(text)
            with pytest.raises(ProviderError):
                await groups_of(provider, "alice", {"a"})


@pytest.mark.parametrize("settings_text", ["{}", "path: absent.yaml", "path: ''"])
def test_a_file_that_is_not_there_stops_the_start(tmp_path: Path, settings_text: str) -> None:
    reading = ConfigReader(parse(settings_text))
    FileGroups.from_config(reading.root, Context(directory=tmp_path))
    assert [problem.place.path for problem in reading.problems] == ["path"]
