"""A TOML file of a runtime: bounded, every mistake told with its line, nothing of it quoted that may be a secret."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ostiary.errors import ConfigurationError
from ostiary.registry.mirrors.toml_file import MAX_BYTES, TomlFile, names_in, read_toml, table_headers

CANARY = "c4n4ry-c4n4ry"


def test_tables_know_their_lines() -> None:
    text = """\
# a comment
[[registry]]
location = '''
[[registry]]
'''
[[registry.mirror]]
[[registry.mirror]]  # the second
[[registry]]
  [[registry.mirror]]
[aliases]
"""
    file = TomlFile("f", text.encode())
    assert not file.problems
    assert file.lines == {
        "registry[0]": 2,
        "registry[0].mirror[0]": 6,
        "registry[0].mirror[1]": 7,
        "registry[1]": 8,
        "registry[1].mirror[0]": 9,
        "aliases": 10,
    }
    mirrors = file.root.tables("registry")[0].tables("mirror")
    assert str(mirrors[1].place) == "f:7, registry[0].mirror[1]"


def test_quoted_keys_and_array_elements_are_told_apart() -> None:
    text = '[host."https://a.example/]"]\nx = [\n["host"],\n]\n'
    assert next(table_headers(text)) == (1, ("host", "https://a.example/]"), False)


@pytest.mark.parametrize(
    ("data", "message", "line"),
    [
        (b"a = 1\nb = \n", "it is not TOML", 2),
        (f"password = '{CANARY}\n".encode(), "it is not TOML", None),
        (b"\xff", "it is not UTF-8", None),
        (b"#" * (MAX_BYTES + 1), f"it is larger than {MAX_BYTES} bytes", None),
        (b"a = " + b"[" * 100_000, "it is nested too deeply", None),
    ],
)
def test_what_is_no_toml_is_a_problem_that_quotes_nothing(data: bytes, message: str, line: int | None) -> None:
    (problem,) = TomlFile("f", data).problems
    assert (problem.message, problem.place.line) == (message, line)
    assert CANARY not in str(problem)


def test_a_value_of_another_type_is_a_problem_and_a_key_that_nobody_asks_for_a_warning() -> None:
    file = TomlFile("f", b'a = 1\nb = "x"\nc = [1]\nd = {}\ninsecur = true\ne = ["x", "y"]\n')
    assert file.root.string("a") == ""
    assert file.root.boolean("b") is False
    assert file.root.strings("c") == ()
    assert file.root.tables("d") == ()
    assert file.root.strings("e") == ("x", "y")
    assert file.root.strings("f") is None
    assert file.root.boolean("insecure") is False
    file.root.finish()
    assert [problem.message for problem in file.problems] == [
        "a is not a string",
        "b is not true or false",
        "c is not a list of strings",
        "d is not an array of tables",
    ]
    (warning,) = file.warnings
    assert (warning.message, warning.hint) == (
        "unknown key insecur, which is passed over",
        "did you mean insecure?",
    )


def test_keys_are_compared_without_regard_to_case() -> None:
    file = TomlFile("f", b'Location = "a"\n')
    assert file.root.string("location") == "a"
    file.root.finish()
    assert not file.warnings


def test_a_file_that_is_not_there_is_none_and_one_that_cannot_be_read_a_problem(tmp_path: Path) -> None:
    assert read_toml(str(tmp_path / "missing")) is None
    unreadable = read_toml(str(tmp_path))
    assert unreadable is not None
    assert "cannot be read" in unreadable.problems[0].message
    assert names_in(str(tmp_path / "missing")) == []
    (tmp_path / "file").touch()
    with pytest.raises(ConfigurationError) as refused:
        names_in(str(tmp_path / "file"))
    assert refused.value.code == "mirrors-invalid"


@given(st.binary(max_size=300))
def test_no_bytes_raise_anything(data: bytes) -> None:
    file = TomlFile("f", data)
    file.root.finish()
    assert file.problems or file.root is not None


@given(st.text(max_size=300))
def test_headers_are_found_in_any_text_without_an_error(text: str) -> None:
    assert all(keys for _, keys, _ in table_headers(text))
