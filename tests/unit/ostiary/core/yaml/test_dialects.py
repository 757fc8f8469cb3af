"""A text is read by the rules of the program that it is written for."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ostiary.core.yaml import (
    CLIENTCMD,
    DOCKER,
    KUBELET,
    KUBERNETES,
    OSTIARY,
    ConfigReader,
    Dialect,
    fold,
    parse,
    parse_all,
)
from ostiary.errors import ConfigurationError
from ostiary.model import Place

DIALECTS = (OSTIARY, KUBELET, KUBERNETES, CLIENTCMD, DOCKER)
WITH_JSON = tuple(dialect for dialect in DIALECTS if dialect.json)
every_json_dialect = pytest.mark.parametrize("dialect", WITH_JSON, ids=lambda dialect: dialect.name)


def error_of(source: str | bytes, dialect: Dialect) -> ConfigurationError:
    with pytest.raises(ConfigurationError) as caught:
        parse(source, file="f", dialect=dialect)
    return caught.value


def strict_json(text: str) -> Any:
    """Python's JSON without its extensions."""

    def no_constant(name: str) -> Any:
        raise ValueError(name)

    return json.loads(text, parse_constant=no_constant)


# --- what begins with a brace ---

NOT_JSON = [
    '{"a": 1,}',
    '{"a": [1, 2,]}',
    "{a: 1}",
    "{'a': 1}",
    "{\"a\": 'b'}",
    '{"a": 1} # comment',
    '{"a": 1 // comment\n}',
    '{"a": 1 /* comment */}',
    '{"a": 1}\n---\n{"b": 2}',
    '{"a": 1}{"b": 2}',
    '{"a": 1}\n...\n',
    '{"a": 1}\x00',
    '{"a": "b\tc"}',
    '{"a": "\\x41"}',
    '{"a": yes}',
    '{"a": NaN}',
    '{"a": Infinity}',
    '{"a": 01}',
    '{"a": .5}',
    '{"a": 1.}',
    '{"a": +1}',
    '{"a": 0x1}',
    '{"a"}',
    '{"a": }',
    '{"a": &x 1, "b": *x}',
    '{"a": 1',
    '{"a": "b',
    "{",
    '\v{"a": 1}',
    '\xa0{"a": 1}',
    "{\xa0}",
]


@every_json_dialect
@pytest.mark.parametrize("text", NOT_JSON)
def test_what_begins_with_a_brace_is_json_and_nothing_else(text: str, dialect: Dialect) -> None:
    assert error_of(text, dialect).code == "config-syntax"
    assert error_of(text.encode(), dialect).code == "config-syntax"


@every_json_dialect
@pytest.mark.parametrize("space", ["\t", " \r\n\t", "\n\n"])
def test_white_space_before_the_brace_is_read_over(space: str, dialect: Dialect) -> None:
    assert parse(f'{space}{{"a":\t1}}{space}', dialect=dialect).value == {"a": 1}


def test_a_kubeconfig_and_our_own_files_are_yaml_even_with_a_brace_first(subtests: pytest.Subtests) -> None:
    for text in ["{a: 1}", "{'a': 1,}", '{"a": 1} # comment', '{"a": 1}\n---\nb: 2', "{a: yes}"]:
        for dialect in [CLIENTCMD, OSTIARY]:
            with subtests.test(dialect.name, text=text):
                assert parse(text, dialect=dialect).value in ({"a": 1}, {"a": True})


@pytest.mark.parametrize("text", ["a: 1", "", "---\n{}", '"a" "b"', "5 5"])
def test_what_docker_reads_is_json_throughout(text: str) -> None:
    assert error_of(text, DOCKER).code == "config-syntax"


def test_a_mistake_in_json_is_told_with_its_line_and_what_to_do(subtests: pytest.Subtests) -> None:
    cases = [
        ('{\n"a": 1,\n}', 3, "remove the comma"),
        ('{\n"a": [1,\n]}', 3, "remove the comma"),
        ('{"a": 1}\n# note', 2, "comment"),
        ('{"a": 1}\n// note', 2, "comment"),
        ("{\n'a': 1}", 2, "double quotes"),
        ("{\n\na: 1}", 3, "read as JSON, not as YAML"),
    ]
    for text, line, hint in cases:
        with subtests.test(text=text, line=line, hint=hint):
            (problem,) = error_of(text, KUBELET).problems
            assert problem.place.line == line
            assert hint in (problem.hint or "")


def test_the_error_about_json_carries_nothing_of_the_text() -> None:
    error = error_of('{"password": "hunter2\\x"}', KUBELET)
    assert "hunter2" not in str(error)
    assert error.__cause__ is None
    assert error.__context__ is None


def test_every_value_of_json_knows_its_path_and_line() -> None:
    document = parse('{\n "a": [\n  1,\n  {"b": null}\n ]\n}', file="f", dialect=KUBELET)
    assert document.place("a", 1, "b") == Place("f", "a[1].b", 4)
    assert document.place("a", 0) == Place("f", "a[0]", 3)


def test_text_in_json_is_read_as_by_go() -> None:
    """Bytes that are not UTF-8 and halves of surrogate pairs become replacement characters, one each."""
    assert parse(b'{"a": "\xe2\x82|\xff\xed\xa0\x80"}', dialect=DOCKER).value == {
        "a": "\ufffd\ufffd|\ufffd\ufffd\ufffd\ufffd"
    }
    assert parse('{"a": "\\ud800|\\ud83d\\ude00|\x7f\x85"}', dialect=DOCKER).value == {
        "a": "\ufffd|\U0001f600|\x7f\x85"
    }


@every_json_dialect
@pytest.mark.parametrize("text", ['{"a": ' * 200 + "1" + "}" * 200, '{"a": ' + "[" * 100_000])
def test_deep_json_is_refused_and_does_not_crash(text: str, dialect: Dialect) -> None:
    assert "levels deep" in str(error_of(text, dialect))


def test_a_number_that_no_float_holds_is_read_and_cannot_be_used() -> None:
    reading = ConfigReader(parse('{"a": 1e400, "b": ' + "9" * 5000 + "}", dialect=KUBERNETES))
    assert reading.root.optional_number("a") is None
    assert reading.root.optional_number("b") is None
    assert [problem.message for problem in reading.problems] == ["the number is too large"] * 2


@pytest.mark.parametrize("text", ["[a?b]", "x: {a: http://b?c=d}", "[{a?: 1}]", "- [!!str a?]", "[a\n ?b]"])
def test_an_unquoted_question_mark_in_a_flow_collection_is_refused_where_go_reads(text: str) -> None:
    assert "quotes" in (error_of(text, KUBELET).hint or "")
    parse(text, dialect=OSTIARY)
    parse("- a?b\n- {x: 'a?b', y: \"?\"}\n- {? a : b}\n", dialect=KUBELET)


# --- what follows the first document ---


@pytest.mark.parametrize(
    "text", ["a: 1\n...\nnot a document: [\n", "a: 1\n---\n{ broken", "[a] trailing", "--- {a: 1}\nb"]
)
def test_go_does_not_look_at_what_follows_the_first_yaml_document(text: str) -> None:
    document = parse(text, dialect=KUBELET)
    assert document.value in ({"a": 1}, ["a"])
    assert document.more
    with pytest.raises(ConfigurationError):
        list(parse_all(text, dialect=KUBELET))


@pytest.mark.parametrize("text", ["a: 1\n...\nnot a document: [\n", "{a: 1} trailing", "--- {a: 1}\nb"])
def test_in_our_own_files_a_broken_rest_is_a_mistake(text: str) -> None:
    assert error_of(text, OSTIARY).code == "config-syntax"


# --- fields that stand twice ---


def test_the_kubelet_refuses_a_field_that_stands_twice_or_overrides_a_merged_one(subtests: pytest.Subtests) -> None:
    cases = [
        '{"a": 1, "a": 1}',
        "a: 1\na: 1\n",
        "base: &b {a: 1}\nc: {<<: *b, a: 2}\n",
        "base: &b {a: 1}\nc: {a: 2, <<: *b}\n",
        "x: &x {a: 1}\ny: &y {a: 1}\nc: {<<: [*x, *y]}\n",
        "x: &x {a: 1}\nc: {<<: *x, <<: *x}\n",
    ]
    for text in cases:
        with subtests.test(text=text):
            reading = ConfigReader(parse(text, dialect=KUBELET))
            reading.root.ignore("a", "base", "c", "x", "y")
            with pytest.raises(ConfigurationError, match="duplicate field"):
                reading.finish("unusable")


def test_a_merge_without_an_overridden_field_is_no_mistake_to_the_kubelet() -> None:
    reading = ConfigReader(parse("base: &b {a: 1}\nc: {<<: *b, d: 2}\n", dialect=KUBELET))
    reading.root.ignore("base", "c")
    reading.finish("unusable")


def test_a_merge_overwrites_what_stands_before_it_where_go_reads() -> None:
    text = "a: &a {p: 1, q: 1}\nb: &b {q: 2, r: 2}\nc: {r: 3, <<: [*a, *b]}\nd: {<<: *b, r: 3}\n"
    value: Any = parse(text, dialect=CLIENTCMD).value
    assert value["c"] == {"p": 1, "q": 1, "r": 2}
    assert value["d"] == {"q": 2, "r": 3}


def test_a_lax_reader_fills_up_objects_that_stand_twice_in_json_and_replaces_them_in_yaml() -> None:
    """In JSON the decoder writes into the same struct; YAML becomes JSON first, and there the last one counts."""
    text = '{"a": {"b": 1, "c": 1}, "a": {"c": 2}, "d": 1, "d": null, "e": [1], "e": [2]}'
    assert parse(text, dialect=KUBERNETES).value == {"a": {"b": 1, "c": 2}, "d": 1, "e": [2]}
    assert parse(text, dialect=CLIENTCMD).value == {"a": {"c": 2}, "d": None, "e": [2]}


def test_all_pairs_of_an_object_can_be_had_in_their_order() -> None:
    root = parse('{"a": 1, "A": 2, "a": 3}', dialect=DOCKER).root
    assert [(key, node.value) for key, node in root.pairs()] == [("a", 1), ("A", 2), ("a", 3)]
    assert [key for key, _ in parse('{"a": 1, "A": 2}', dialect=DOCKER).root.pairs()] == ["a", "A"]


def test_strictness_is_the_dialects_unless_a_loader_says_otherwise() -> None:
    ConfigReader(parse('{"a": 1}', dialect=KUBERNETES)).finish("lax")
    ConfigReader(parse('{"a": 1}', dialect=KUBELET)).finish("lax by choice", strict=False)
    with pytest.raises(ConfigurationError, match="unknown field"):
        ConfigReader(parse('{"a": 1}', dialect=KUBELET)).finish("strict")


@pytest.mark.parametrize(("name", "other"), [("AUTHS", "auths"), ("auth\u017f", "auths"), ("to\u212aen", "token")])
def test_field_names_are_folded_as_by_encoding_json(name: str, other: str) -> None:
    assert fold(name) == fold(other)
    assert fold("pa\u00dfword") != fold("password")


# --- properties ---

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=20,
)
OBJECTS = st.dictionaries(st.text(max_size=4), VALUES, max_size=4)
LAYOUTS: st.SearchStrategy[dict[str, Any]] = st.fixed_dictionaries(
    {"indent": st.sampled_from([None, 1, "\t"]), "ensure_ascii": st.booleans()}
)


@every_json_dialect
@given(OBJECTS, LAYOUTS, st.sampled_from(["", "\t", " \n"]))
@settings(max_examples=60, deadline=None)
def test_json_has_the_value_that_json_gives_it(
    dialect: Dialect, value: dict[str, Any], layout: dict[str, Any], space: str
) -> None:
    text = space + json.dumps(value, **layout) + space
    assert parse(text, dialect=dialect).value == value
    assert parse(text.encode(), dialect=dialect).value == value


JSONISH = st.text(st.sampled_from("{}[]\"':,\\/# \t\n-+.0123eEuax_&*truefalsn"), max_size=30)


@st.composite
def damaged_json(draw: st.DrawFn) -> str:
    """A JSON object with a piece cut out or put in."""
    text = json.dumps(draw(OBJECTS), **draw(LAYOUTS))
    start = draw(st.integers(1, len(text)))
    return text[:start] + draw(JSONISH) + text[start + draw(st.integers(0, 2)) :]


@every_json_dialect
@given(st.one_of(damaged_json(), JSONISH.map("{".__add__)))
@settings(max_examples=300, deadline=None)
def test_what_json_refuses_is_refused_and_what_it_takes_has_its_value(dialect: Dialect, text: str) -> None:
    try:
        value = strict_json(text)
    except ValueError:
        assert error_of(text, dialect).code == "config-syntax"
        return
    if "\\u" not in text and not _repeats_a_key(text):
        assert parse(text, dialect=dialect).value == value


def _repeats_a_key(text: str) -> bool:
    """Whether a key stands twice in an object of *text*: which one counts is the reader's choice."""
    repeats = []

    def note(pairs: list[tuple[str, Any]]) -> Any:
        repeats.append(len(dict(pairs)) < len(pairs))
        return dict(pairs)

    json.loads(text, object_pairs_hook=note)
    return any(repeats)


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.name)
@given(st.one_of(st.binary(max_size=100), JSONISH, st.text(max_size=50)))
@settings(max_examples=100, deadline=None)
def test_whatever_the_text_is_it_is_read_or_a_configuration_error(dialect: Dialect, source: str | bytes) -> None:
    with suppress(ConfigurationError):
        list(parse_all(source, dialect=dialect))
