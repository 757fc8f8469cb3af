"""A setting is declared once: the loader, the schema and the table are made from the declaration."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from enum import Enum
from pathlib import Path
from typing import Annotated, ClassVar

import pytest

from ostiary.core.yaml import ConfigReader, ConfigSection, parse
from ostiary.errors import ConfigurationError
from ostiary_gateway.settings.declare import RawFields, camel_case, read_settings, settings_of
from ostiary_gateway.settings.kinds import Duration, FilePath, Flag, Integer, Names, OneOf, Text
from ostiary_gateway.settings.sections import OptionalSection, Section, Sections, object_schema, table


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


@dataclass(frozen=True, slots=True)
class Trust:
    SCHEMA: ClassVar[Mapping[str, object]] = {"dependentRequired": {"key": ["certificate"]}}

    certificate: Annotated[Path | None, FilePath("what is presented", unset="none")] = None
    key: Annotated[Path | None, FilePath("its key", unset="none")] = None


@dataclass(frozen=True, slots=True)
class Guest:
    name: Annotated[str, Text("who it is")]
    nights: Annotated[int, Integer("how long they stay", unit="nights")] = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class House:
    owner: Annotated[str, Text("whose it is", missing="it is missing: the owner", missing_hint="ask around")]
    colour: Annotated[Colour, OneOf("of the walls", Colour)] = Colour.RED
    open_for: Annotated[timedelta, Duration("how long the `door` stays open", reload=False)] = timedelta(hours=1)
    rooms: Annotated[int, Integer("rooms", least=2)] = 3
    lit: Annotated[bool, Flag("whether there is light")] = True
    names: Annotated[tuple[str, ...], Names("other names")] = ()
    trust: Annotated[Trust, Section("how others know it", Trust)] = field(default=Trust())
    spare: Annotated[Trust | None, OptionalSection("the same once more", Trust)] = None
    guests: Annotated[tuple[Guest, ...], Sections("who sleeps there", Guest, "One guest.")] = ()
    fields: Annotated[ConfigSection, RawFields] = field(compare=False)

    def check(self, fields: ConfigSection) -> None:
        if self.rooms < len(self.guests) and fields.is_right("rooms", "guests"):
            fields.problem("there are more guests than rooms", "rooms")


def reading_of(text: str) -> tuple[House, ConfigReader]:
    reading = ConfigReader(parse(text))
    return read_settings(House, reading.root, Path("/etc")), reading


def problems(text: str) -> list[tuple[str, str, str | None]]:
    _, reading = reading_of(text)
    with pytest.raises(ConfigurationError) as caught:
        reading.finish("wrong", strict=True)
    return [(problem.place.path, problem.message, problem.hint) for problem in caught.value.problems]


def test_what_is_left_out_has_its_default() -> None:
    house, reading = reading_of("owner: alice")
    assert house == House(owner="alice", fields=reading.root)
    assert house.fields is reading.root
    assert reading.problems == []


def test_what_is_written_is_read_by_its_kind() -> None:
    house, reading = reading_of(
        "{owner: bob, colour: blue, openFor: 90s, rooms: 5, lit: false, names: [a, b], spare: {},"
        " guests: [{name: carol, nights: 2}]}"
    )
    assert reading.problems == []
    assert (house.colour, house.open_for, house.rooms, house.lit) == (Colour.BLUE, timedelta(seconds=90), 5, False)
    assert (house.names, house.spare, house.guests) == (("a", "b"), Trust(), (Guest("carol", 2),))


def test_a_mistake_is_noted_once_where_it_stands(subtests: pytest.Subtests) -> None:
    cases: list[tuple[str, tuple[str, str, str | None]]] = [
        ("{}", ("owner", "it is missing: the owner", "ask around")),
        ("owner: ''", ("owner", "it must not be empty", None)),
        ("owner: 7", ("owner", "expected a string, found a number", "put it in quotes")),
        ("{owner: a, rooms: 1}", ("rooms", "it must be at least 2", None)),
        ("{owner: a, openFor: 5}", ("openFor", "it has no unit", "write 5s, 5m or 5h")),
        ("{owner: a, openFor: 0s}", ("openFor", "it must be greater than zero", None)),
        ("{owner: a, colour: green}", ("colour", "unknown value", "use one of red, blue")),
        ("{owner: a, names: ['']}", ("names", "empty entry in the list", "remove it, or fill it in")),
        ("{owner: a, names: [b, b]}", ("names", "duplicate entry in the list", None)),
        ("{owner: a, guests: [{nights: 2}]}", ("guests[0].name", "it is missing", None)),
        ("{owner: a, roms: 4}", ("roms", "unknown field", "did you mean rooms?")),
        ("{owner: a, trust: {kye: x}}", ("trust.kye", "unknown field", "did you mean key?")),
    ]
    for text, expected in cases:
        with subtests.test(text=text, expected=expected):
            assert problems(text) == [expected]


def test_settings_that_must_agree_are_checked_together() -> None:
    guests = "guests: [{name: a}, {name: b}, {name: c}]"
    assert problems(f"{{owner: a, rooms: 2, {guests}}}") == [("rooms", "there are more guests than rooms", None)]
    # A mistaken number says nothing about the guests.
    assert [path for path, _, _ in problems(f"{{owner: a, rooms: 1, {guests}}}")] == ["rooms"]


def test_names_in_a_file_are_in_camel_case() -> None:
    assert [setting.name for setting in settings_of(House)][:3] == ["owner", "colour", "openFor"]
    assert camel_case("requests_per_second") == "requestsPerSecond"


def test_the_schema_says_what_the_declaration_says() -> None:
    schema = object_schema(House)
    assert schema["required"] == ["owner"]
    assert schema["additionalProperties"] is False
    properties = schema["properties"]
    assert isinstance(properties, dict)
    assert "fields" not in properties
    assert properties["owner"] == {"description": "Whose it is.", "type": "string", "minLength": 1}
    assert properties["rooms"] == {"description": "Rooms.", "type": "integer", "minimum": 2, "default": 3}
    assert properties["colour"] == {"description": "Of the walls.", "enum": ["red", "blue"], "default": "red"}
    trust = properties["trust"]
    assert isinstance(trust, dict)
    assert trust["dependentRequired"] == {"key": ["certificate"]}


def test_a_section_is_required_if_one_of_its_settings_is() -> None:
    @dataclass(frozen=True, slots=True, kw_only=True)
    class Street:
        corner: Annotated[Guest, Section("a section with a required setting", Guest)]
        spare: Annotated[Guest | None, OptionalSection("one that may be left out", Guest)] = None

    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(globals(), "Guest", Guest)
        assert object_schema(Street)["required"] == ["corner"]


def test_the_table_has_a_row_for_each_setting() -> None:
    rows = table(House).splitlines()[2:]
    assert rows[0] == "| `owner` | text | required | whose it is |"
    assert rows[2] == "| `openFor` | duration | `1h` | how long the `door` stays open. A change needs a restart. |"
    assert "| `trust.key` | file | none | its key |" in rows
    assert "| `guests[].nights` | nights | `1` | how long they stay |" in rows
