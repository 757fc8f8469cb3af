"""The bytes of Go's encoder, and what its decoder reads."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ostiary.wire.go_json import go_json, read_go_json

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**64), 2**64)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


def test_strings_are_escaped_as_go_escapes_them_and_keys_stay_in_order() -> None:
    assert go_json({"z": "<a>&\u2028é\n\x7f", "a": 1}) == '{"z":"\\u003ca\\u003e\\u0026\\u2028é\\n\x7f","a":1}'


def test_a_number_has_the_text_that_go_gives_it(subtests: pytest.Subtests) -> None:
    """What ``encoding/json`` writes for these; asked of Go 1.26."""
    cases = [
        (1.0, "1"),
        (-0.0, "-0"),
        (1e3, "1000"),
        (0.1, "0.1"),
        (2.50, "2.5"),
        (123456789.125, "123456789.125"),
        (1e-6, "0.000001"),
        (2.5e-6, "0.0000025"),
        (1e-7, "1e-7"),
        (1.25e-8, "1.25e-8"),
        (5e-324, "5e-324"),
        (1e16, "10000000000000000"),
        (1e20, "100000000000000000000"),
        (123456789012345678901.0, "123456789012345680000"),
        (-9223372036854775809.0, "-9223372036854776000"),
        (1e21, "1e+21"),
        (1.7976931348623157e308, "1.7976931348623157e+308"),
        (12345678901234567890, "12345678901234567890"),
    ]
    for number, text in cases:
        with subtests.test(number=number, text=text):
            assert go_json(number) == text
            assert go_json({"a": [number, {"b": number}]}) == f'{{"a":[{text},{{"b":{text}}}]}}'


@given(JSON)
def test_whatever_is_written_is_read_back(value: object) -> None:
    assert json.loads(go_json(value), parse_int=float) == json.loads(json.dumps(value), parse_int=float)


@pytest.mark.parametrize("number", [float("nan"), float("inf"), -float("inf")])
def test_what_json_has_no_text_for_is_refused(number: float) -> None:
    with pytest.raises(ValueError, match="neither"):
        go_json([number])


def test_it_is_read_as_go_reads_it_into_a_struct(subtests: pytest.Subtests) -> None:
    cases = [
        (b'{"a": {"x": 1}, "a": {"y": 2}}', {"a": {"x": 1, "y": 2}}),
        (b'{"a": {"b": {"x": 1}}, "a": {"b": {"x": 2, "y": 3}}}', {"a": {"b": {"x": 2, "y": 3}}}),
        (b'{"a": "x", "a": null}', {"a": "x"}),
        (b'{"p": "x", "p": null}', {"p": None}),
        (b'{"a": {"x": 1}, "a": null}', {"a": None}),
        (b'{"a": [1], "a": [2]}', {"a": [2]}),
        (b'{"a": "\xff\xfe"}', {"a": "\ufffd\ufffd"}),
        (b'{"a": "\\ud800x"}', {"a": "\ufffdx"}),
    ]
    for text, value in cases:
        with subtests.test(text=text, value=value):
            assert read_go_json(text, pointers=frozenset({"p"})) == value


def test_what_is_no_json_is_refused_and_not_quoted(subtests: pytest.Subtests) -> None:
    for text in [b"{", b'{"a": NaN}', b'{"a": Infinity}', b"{} {}", b"{'a': 1}", b"[" * 100_000]:
        with subtests.test(text=text):
            with pytest.raises(ValueError, match="") as refused:
                read_go_json(text)
            assert type(refused.value) is ValueError
            assert refused.value.__context__ is None
