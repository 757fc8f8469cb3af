"""Numbers and durations of a configuration."""

from __future__ import annotations

from datetime import timedelta

import pytest

from ostiary.core.yaml import ConfigReader, ConfigSection, parse


def fields(text: str) -> tuple[ConfigSection, ConfigReader]:
    reading = ConfigReader(parse(text))
    return reading.root, reading


def test_numbers_and_durations_are_read() -> None:
    root, reading = fields("a: 3\nb: 2.5\nc: 1h30m\nd: 4")
    assert root.optional_integer("a") == 3
    assert root.optional_number("b") == 2.5
    assert root.optional_number("d") == 4
    assert root.optional_duration("c") == timedelta(minutes=90)
    assert reading.problems == []


def test_an_absent_number_is_none() -> None:
    root, reading = fields("{}")
    assert [root.optional_integer("a"), root.optional_number("a"), root.optional_duration("a")] == [None] * 3
    assert reading.problems == []


@pytest.mark.parametrize("value", ["true", '"3"', "[3]", "3.5"])
def test_what_is_no_whole_number_is_a_mistake(value: str) -> None:
    root, reading = fields(f"a: {value}")
    assert root.optional_integer("a") is None
    assert "expected a number" in reading.problems[0].message


@pytest.mark.parametrize("value", ["true", '"3"'])
def test_what_is_no_number_is_a_mistake(value: str) -> None:
    root, reading = fields(f"a: {value}")
    assert root.optional_number("a") is None
    assert len(reading.problems) == 1


@pytest.mark.parametrize("value", ["3", "3d", "soon", "''"])
def test_a_duration_has_a_unit(value: str) -> None:
    root, reading = fields(f"a: {value}")
    assert root.optional_duration("a") is None
    assert len(reading.problems) == 1
