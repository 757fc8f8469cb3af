"""YAML and JSON become values that remember where they stood; broken files become clear errors."""

from __future__ import annotations

import json
import math
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from ostiary.core import yaml as config
from ostiary.core.yaml import ConfigReader, ConfigSection, Document, parse, parse_all, read, yaml_reader
from ostiary.errors import ConfigurationError
from ostiary.model import Place

USERS = """\
users:
- name: ops
- name: dev
  user:
    exec:
      command: acme-login
      args: [get, "token"]
"""


def error_of(source: str | bytes, **options: Any) -> ConfigurationError:
    with pytest.raises(ConfigurationError) as caught:
        parse(source, **options)
    return caught.value


def fields_of(source: str) -> tuple[ConfigReader, ConfigSection]:
    reading = ConfigReader(parse(source, file="f.yaml"))
    return reading, reading.root


def messages(reading: ConfigReader) -> list[str]:
    return [str(problem) for problem in reading.problems]


# --- values ---


def test_a_scalar_means_what_it_means_to_kubectl(subtests: pytest.Subtests) -> None:
    cases = [
        ("2024-01-01", "2024-01-01"),
        ("2024-01-01T00:00:00Z", "2024-01-01T00:00:00Z"),
        ("12:30", "12:30"),
        ("1e400", "1e400"),
        ("=", "="),
        ("_1", "_1"),
        (".1_0", 0.1),
        (".1__0", ".1__0"),
        ("18446744073709551615", 2**64 - 1),
        ("-9223372036854775809", -9223372036854775809.0),
        ("0x1ffffffffffffffff", "0x1ffffffffffffffff"),
        ("!!float 5", 5.0),
        ("!!timestamp 2024-01-01", "2024-01-01"),
        ("!!binary aGk=", "hi"),
        ("!!binary gA==", "\ufffd"),
        ("1.2.3", "1.2.3"),
        ("!!str 5", "5"),
        ("! 5", "5"),
        ("!custom text", "text"),
        ("'y'", "y"),
        ("y", True),
        ("N", False),
        ("on", True),
        ("OFF", False),
        ("True", True),
        ("no", False),
        ("tRue", "tRue"),
        ("~", None),
        ("", None),
        ("NULL", None),
        ("!!null ''", None),
        ("0", 0),
        ("-17", -17),
        ("+1_000", 1000),
        ("0x1F", 31),
        ("0o17", 15),
        ("017", 15),
        ("-0b101", -5),
        ("08", 8.0),
        ("1.5", 1.5),
        (".5e1", 5.0),
        ('!!int "5"', 5),
    ]
    for text, value in cases:
        with subtests.test(text=text, value=value):
            found = parse(f"x: {text}").value
            assert found == {"x": value}
            assert type(found["x"]) is type(value)


def test_a_number_too_long_for_any_type_stays_text() -> None:
    assert parse("x: " + "9" * 5000).value == {"x": "9" * 5000}


def test_keys_become_strings_as_in_json() -> None:
    assert parse("5: a\non: b\n'no': c\n").value == {"5": "a", "true": "b", "no": "c"}
    assert parse("1.5: a\n1e6: b\n.inf: c\n1e-5: d\n1e39: e").value == {
        "1.5": "a",
        "1e+06": "b",
        ".inf": "e",
        "1e-05": "d",
    }


@pytest.mark.parametrize("text", ["? [a]\n: b", "? {a: b}\n: c", "~: a", "18446744073709551615: a"])
def test_a_key_that_cannot_be_a_string_is_an_error(text: str) -> None:
    assert "a key must be a string" in str(error_of(text))


def test_a_number_that_json_cannot_hold_is_refused(subtests: pytest.Subtests) -> None:
    for text in [".inf", "-.INF", ".nan", "[.NaN]", "!!float .inf", "&a .inf"]:
        with subtests.test(text=text):
            assert "can be a value" in str(error_of(f"x: {text}"))


def test_a_scalar_that_does_not_fit_its_tag_is_refused(subtests: pytest.Subtests) -> None:
    for text in ["!!int 1.5", "!!int x", "!!bool 5", "!!null x", "!!float x", "!!timestamp x", "!!binary a"]:
        with subtests.test(text=text):
            assert "!!" in str(error_of(f"x: {text}"))


@pytest.mark.parametrize("text", ["", " \n", "# only a comment\n", "---\n"])
def test_an_empty_text_is_a_document_that_holds_nothing(text: str) -> None:
    assert parse(text).value is None


def test_json_with_tabs_is_read_too() -> None:
    value = {"a": [1, {"b": "\u00fc/"}], "c": None}
    assert parse(json.dumps(value, indent="\t")).value == value


def test_the_order_of_keys_is_kept() -> None:
    assert json.dumps(parse("b: 1\na: 2\nc: 3\n").value) == '{"b": 1, "a": 2, "c": 3}'


def test_a_byte_order_mark_does_no_harm() -> None:
    """As with kubectl; a redirection in PowerShell writes UTF-16."""
    assert parse("\ufeffa: ü\n".encode()).value == {"a": "ü"}
    assert parse("a: ü\n".encode("utf-16")).value == {"a": "ü"}
    assert parse("\ufeffa: ü\n".encode("utf-16-be")).value == {"a": "ü"}


# --- anchors ---


def test_an_alias_repeats_what_it_names() -> None:
    assert parse("a: &x [1, {b: 2}]\nc: *x\n&k d: 4\n*k : 5").value == {
        "a": [1, {"b": 2}],
        "c": [1, {"b": 2}],
        "d": 5,
    }


def test_merged_fields_give_way_to_those_written_out_and_to_earlier_ones() -> None:
    text = "a: &a {p: 1, q: 1}\nb: &b {q: 2, r: 2}\nc: {r: 3, <<: [*a, *b]}\nd: {<<: *b}\ne: {'<<': 1}\n"
    value = parse(text).value
    assert isinstance(value, dict)
    assert value["c"] == {"p": 1, "q": 1, "r": 3}
    assert value["d"] == {"q": 2, "r": 2}
    assert value["e"] == {"<<": 1}


def test_only_mappings_can_be_merged() -> None:
    assert "only mappings can be merged" in str(error_of("a: {<<: [1]}"))
    assert "only mappings can be merged" in str(error_of("a: {<<: text}"))
    assert "only mappings can be merged" in str(error_of("l: &l [{b: 1}]\na: {<<: *l}"))


def test_an_alias_bomb_is_refused() -> None:
    rows = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    rows += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 6)]
    error = error_of("\n".join(rows))
    assert error.code == "config-syntax"
    assert "repeat more than" in str(error)


def test_aliases_cannot_nest_deeper_than_what_is_written_out() -> None:
    rows = ["a0: &a0 x"]
    rows += [f"a{n}: &a{n} {'[' * 60}*a{n - 1}{']' * 60}" for n in range(1, 3)]
    assert "levels deep" in str(error_of("\n".join(rows)))


@pytest.mark.parametrize("text", ["a: &a [*a]", "a: &a {b: *a}", "a: &a {<<: *a}"])
def test_a_value_that_contains_itself_is_refused(text: str) -> None:
    assert "contains itself" in str(error_of(text))


def test_an_anchor_ends_with_its_document() -> None:
    documents = parse_all("a: &x 1\n---\nb: *x\n")
    next(documents)
    with pytest.raises(ConfigurationError, match="not defined"):
        next(documents)


# --- places ---


def test_every_value_knows_its_file_path_and_line() -> None:
    document = parse(USERS, file="config")
    assert document.place("users", 1, "user", "exec", "command") == Place("config", "users[1].user.exec.command", 6)
    assert document.place("users", 1, "user", "exec", "args", 1) == Place("config", "users[1].user.exec.args[1]", 7)
    assert str(document.place()) == "config:1"


def test_an_absent_value_has_the_place_where_it_would_stand() -> None:
    document = parse(USERS, file="config")
    assert document.place("users", 1, "user", "token") == Place("config", "users[1].user.token", 5)
    assert document.place("users", 7) == Place("config", "users[7]", 2)


def test_a_key_that_would_blur_the_path_is_quoted() -> None:
    document = parse('extra: {"acme.io/a b": 1, "\\e": 2}')
    assert document.place("extra", "acme.io/a b").path == 'extra["acme.io/a b"]'
    assert document.place("extra", "\x1b").path == 'extra["\\u001b"]'


# --- files that cannot be read ---


def test_a_missing_file_and_a_directory_are_told_with_their_names(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError) as missing:
        read(tmp_path / "none")
    assert missing.value.code == "config-unreadable"
    assert isinstance(missing.value.__cause__, FileNotFoundError)
    assert str(tmp_path / "none") in str(missing.value)
    with pytest.raises(ConfigurationError, match="directory") as directory:
        read(tmp_path)
    assert directory.value.code == "config-unreadable"
    with pytest.raises(ConfigurationError, match="file name"):
        read("a\0b")


def test_a_file_is_read_with_its_places(tmp_path: Path) -> None:
    (tmp_path / "f.yaml").write_text(USERS)
    assert read(tmp_path / "f.yaml").place("users").file == str(tmp_path / "f.yaml")


def test_a_file_larger_than_any_configuration_is_refused(tmp_path: Path) -> None:
    with open(tmp_path / "big", "wb") as file:
        file.truncate(config.MAX_BYTES + 1)
    with pytest.raises(ConfigurationError, match="larger than 16 MiB"):
        read(tmp_path / "big")


@pytest.mark.parametrize("text", ["[" * 200_000, "- " * 200_000, "{a: " * 200_000, "? " * 200_000])
def test_deep_nesting_is_refused_and_does_not_crash(text: str) -> None:
    assert "levels deep" in str(error_of(text))


def test_nesting_up_to_the_limit_is_read() -> None:
    depth = config.MAX_DEPTH
    assert parse("[" * depth + "]" * depth).value is not None


def test_a_broken_text_is_told_with_its_line(subtests: pytest.Subtests) -> None:
    cases: list[tuple[str | bytes, int, str]] = [
        (b"a: 1\nb: \xe9t\xe9\n", 2, "not UTF-8"),
        (b"a: 1\n\nb: x\0y\n", 3, "U+0000"),
        (b"a: \x1b[31m\n", 1, "U+001B"),
        ("a: 1\nb: \ud800\n", 2, "U+D800"),
        (b"\xff\xfea", 1, "not UTF-8"),
        (b"a:\n\tb: 1\n", 2, "tab"),
        (b"a: 1\nb: [1, 2\nc: 3\n", 3, ""),
        (b"a: b: c\n", 1, "mapping values"),
        (b"a: 1\nb: !!binary a\n", 2, "!!binary"),
        (b'{"a": 1} trailing', 1, "document start"),
    ]
    for source, line, message in cases:
        with subtests.test(source=source, line=line, message=message):
            error = error_of(source, file="f.yaml")
            assert error.code == "config-syntax"
            (problem,) = error.problems
            assert (problem.place.file, problem.place.line) == ("f.yaml", line)
            assert message in str(error)


@pytest.mark.parametrize("value", ["*", "*.example.com", "*name", "'a', *x"])
def test_an_unquoted_asterisk_is_told_to_be_quoted(value: str) -> None:
    error = error_of(f"matchImages: [{value}]\n", file="f.yaml")
    assert error.hint is not None
    assert "quotes" in error.hint
    assert "f.yaml:1" in str(error)


@pytest.mark.parametrize("value", ["@x", "`x`", "%x", "&"])
def test_other_characters_that_need_quotes_are_told_too(value: str) -> None:
    assert "quotes" in (error_of(f"a: {value}\n").hint or "")


def test_an_error_carries_nothing_of_the_text(subtests: pytest.Subtests) -> None:
    cases: list[str | bytes] = [
        "token: hunter2\nbad: [",
        "token: hunter2\nbad: *hunter",
        "token: \thunter2\n\tx: hunter2",
        b"token: hunter2\nbad: \xff",
        "token: hunter2: x",
        "token: hunter2\x00",
    ]
    for source in cases:
        with subtests.test(source=source):
            error = error_of(source)
            assert "hunter2" not in str(error)
            assert error.__cause__ is None
            assert error.__context__ is None


# --- several documents ---


def test_the_first_document_is_read_and_tells_that_there_are_more() -> None:
    assert parse("a: 1\n---\nb: 2\n") == Document(parse("a: 1\n").root, more=True)
    assert not parse("---\na: 1\n...\n").more


def test_what_follows_the_first_document_is_not_judged() -> None:
    assert parse("a: 1\n---\n{ broken").value == {"a": 1}


def test_all_documents_can_be_read() -> None:
    assert [document.value for document in parse_all("a: 1\n---\n---\nb: 2\n")] == [{"a": 1}, None, {"b": 2}]
    assert [document.more for document in parse_all("a: 1\n---\nb: 2\n")] == [True, False]


# --- fields ---


def test_absent_and_null_fields_are_empty() -> None:
    reading, fields = fields_of("a: ~\n")
    assert fields.string("a") == fields.string("b") == ""
    assert fields.optional_string("a") is None
    assert fields.boolean("a") is False
    assert fields.optional_boolean("b") is None
    assert fields.strings("a") == fields.strings("b") == ()
    assert fields.base64("a") is None
    assert fields.optional_section("a") is None
    assert fields.section("a").string("x") == ""
    assert fields.sections("b") == []
    assert fields.plain("a") is None
    assert reading.problems == []


def test_fields_are_read_by_type() -> None:
    reading, fields = fields_of('s: x\nb: yes\nl: [a, ~]\nd: "aG\\nk="\nm: {k: v}\nq: [{k: 1}, ~]\n')
    assert fields.string("s") == fields.optional_string("s") == "x"
    assert fields.boolean("b") is fields.optional_boolean("b") is True
    assert fields.strings("l") == ("a", "")
    assert fields.base64("d") == b"hi"
    assert fields.section("m").string("k") == "v"
    assert [item.plain("k") for item in fields.sections("q")] == [1, None]
    assert list(fields) == ["s", "b", "l", "d", "m", "q"]
    assert reading.problems == []


def test_every_mistake_is_collected_with_its_place() -> None:
    reading, fields = fields_of("s: 5\nb: maybe\nl: [a, 1, [x]]\nd: '***'\nm: text\nq:\n- k: 1\n- 2\n")
    assert fields.string("s") == ""
    assert fields.boolean("b") is False
    assert fields.strings("l") == ("a", "", "")
    assert fields.base64("d") is None
    assert fields.section("m").string("k") == ""
    assert len(fields.sections("q")) == 2
    fields.problem("a mistake that the loader sees", "s")
    assert messages(reading) == [
        "f.yaml:1, s: expected a string, found a number",
        "f.yaml:2, b: expected a boolean, found a string",
        "f.yaml:3, l[1]: expected a string, found a number",
        "f.yaml:3, l[2]: expected a string, found a list",
        "f.yaml:4, d: it is not base64",
        "f.yaml:5, m: expected a mapping, found a string",
        "f.yaml:8, q[1]: expected a mapping, found a number",
        "f.yaml:1, s: a mistake that the loader sees",
    ]
    assert reading.problems[0].hint == "put it in quotes"
    assert reading.problems[3].hint is None
    with pytest.raises(ConfigurationError) as caught:
        reading.finish("f.yaml cannot be used")
    assert caught.value.problems == tuple(reading.problems)


def test_base64_is_as_strict_as_go(subtests: pytest.Subtests) -> None:
    for text in ["aGk", "aG k=", "aGk=aGk=", "aGk==", "aGkh=", "aGkh====", "=", "ü"]:
        with subtests.test(text=text):
            reading, fields = fields_of(f"d: '{text}'")
            assert fields.base64("d") is None
            assert len(reading.problems) == 1


@pytest.mark.parametrize(("text", "kind"), [("[1]", "a list"), ("text", "a string"), ("5", "a number")])
def test_a_document_must_be_a_mapping(text: str, kind: str) -> None:
    reading, fields = fields_of(text)
    assert fields.string("a") == ""
    assert messages(reading) == [f"f.yaml:1: expected a mapping, found {kind}"]


def test_what_nobody_asked_for_is_unknown() -> None:
    reading, fields = fields_of("a: 1\nnoted: 2\nm: {k: 1, colour: 2}\nraw: {any: {thing: 1}}\n")
    fields.ignore("noted")
    fields.section("m").plain("k")
    fields.plain("raw")
    assert reading.unknown_fields() == (Place("f.yaml", "a", 1), Place("f.yaml", "m.colour", 3))
    reading.finish("lenient")


def test_a_strict_reader_refuses_unknown_and_repeated_fields() -> None:
    reading, fields = fields_of("name: a\nmatchImage: []\nname: b\nm: {k: 1,\n k: 2}\n")
    assert fields.string("name") == "b"
    fields.strings("matchImages")
    fields.section("m").plain("k")
    with pytest.raises(ConfigurationError) as caught:
        reading.finish("f.yaml cannot be used", strict=True)
    assert [str(problem) for problem in caught.value.problems] == [
        "f.yaml:2, matchImage: unknown field",
        "f.yaml:3, name: duplicate field",
        "f.yaml:5, m.k: duplicate field",
    ]
    assert caught.value.problems[0].hint == "did you mean matchImages?"


# --- properties ---

YAMLISH = st.text(st.sampled_from("ab: -[]{}?&*!|>'\"%@`#,\n\t~<0.y=\\"), max_size=60)


@given(st.one_of(st.binary(max_size=200), YAMLISH.map(str.encode), st.text(max_size=100), YAMLISH))
@settings(max_examples=300, deadline=None)
def test_whatever_the_bytes_are_there_is_a_value_or_a_configuration_error(source: str | bytes) -> None:
    with suppress(ConfigurationError):
        json.dumps(parse(source).value, allow_nan=False)


@given(st.one_of(st.binary(max_size=100), YAMLISH))
@settings(max_examples=150, deadline=None)
def test_the_reader_without_libyaml_is_as_safe(source: str | bytes) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(yaml_reader, "LOADER", yaml.SafeLoader)
        with suppress(ConfigurationError):
            json.dumps(parse(source).value, allow_nan=False)


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.text(st.characters(max_codepoint=0xFFFF, exclude_categories=["Cs", "Cc", "Cn"])),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text("abc<", max_size=3), inner, max_size=4),
    max_leaves=20,
)


@given(st.dictionaries(st.text("abc", max_size=3), JSON, max_size=4))
@settings(max_examples=40, deadline=None)
def test_json_is_read_as_it_was_written(value: dict[str, Any]) -> None:
    assert parse(json.dumps(value, ensure_ascii=False)).value == value


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_numbers_are_read_as_they_were_written(number: float) -> None:
    found = parse(f"[{number!r}]").value
    assert isinstance(found, list)
    assert isinstance(found[0], float)
    assert math.isclose(found[0], number, rel_tol=0)
