"""One value of a YAML or JSON text is changed, and every other byte stays."""

from __future__ import annotations

import json

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from ostiary.core.yaml import parse
from ostiary.core.yaml.edit import EditRefused, append_item, remove_item, set_value
from ostiary.errors import ConfigurationError

COMMENTED = """\
# mine, by hand
users:   # everyone
  - name: "a"     # quoted
    user: {token: 'x'}

  # the next one
  - name: b
    user:
      token: |+
        y

# the end of users
current-context: ''   # none yet
...
"""


def kept_around(old: str, new: str) -> tuple[str, str]:
    """What *new* has in common with *old* at its beginning and at its end."""
    start = next((at for at, (one, other) in enumerate(zip(old, new, strict=False)) if one != other), len(old))
    rest = old[start:]
    end = next((n for n in range(len(rest), -1, -1) if new.endswith(rest[len(rest) - n :]) or n == 0), 0)
    return old[:start], rest[len(rest) - end :]


def test_an_item_is_appended_below_the_last_one_and_comments_stay() -> None:
    new = append_item(COMMENTED, ("users",), {"name": "c", "user": {"exec": {"args": ["x", "y"]}}})
    added = '  - name: c\n    user:\n      exec:\n        args:\n        - x\n        - "y"\n'
    assert new == COMMENTED.replace("# the end", f"{added}# the end")


def test_a_value_is_replaced_where_it_stands() -> None:
    assert set_value(COMMENTED, ("current-context",), "a") == COMMENTED.replace("''", '"a"')
    assert set_value(COMMENTED, ("users", 0, "user", "token"), "z") == COMMENTED.replace("'x'", '"z"')


def test_a_new_key_goes_below_the_last_one() -> None:
    new = set_value(COMMENTED, ("clusters",), [{"name": "x"}])
    assert new == COMMENTED.replace("...", "clusters:\n- name: x\n...")
    assert set_value(COMMENTED, ("users", 0, "user", "as"), "z") == COMMENTED.replace("'x'", '\'x\', "as": "z"')


def test_an_empty_list_is_filled_below_its_key(subtests: pytest.Subtests) -> None:
    for empty in ["[]", "null", "~", "", " []"]:
        for newline in ["\n", "\r\n"]:
            with subtests.test(empty=empty, newline=newline):
                text = newline.join(["a: 1", f"users: {empty}  # here", "z: 2", ""])
                new = append_item(text, ("users",), {"name": "x"})
                assert "# here" in new
                assert parse(new).value == {"a": 1, "users": [{"name": "x"}], "z": 2}
                assert new.count("\n") == new.count(newline)


def test_an_empty_document_gets_the_whole_value_and_keeps_its_comments(subtests: pytest.Subtests) -> None:
    for text in ["", "# nothing but a comment\n", "# no newline", "---\n", "null\n", "\ufeff"]:
        with subtests.test(text=text):
            new = set_value(text, (), {"a": {"b": [1]}})
            assert parse(new).value == {"a": {"b": [1]}}
            assert new.startswith(text.removesuffix("null\n"))


@pytest.mark.parametrize(
    "text",
    [
        "base: &x [1]\nusers: *x\n",
        "users: &x\n- 1\nother: *x\n",
    ],
)
def test_what_is_shared_by_a_reference_is_not_changed(text: str) -> None:
    with pytest.raises(EditRefused):
        append_item(text, ("users",), 2)


def test_json_stays_json_with_its_own_layout() -> None:
    text = '{\n\t"users": [\n\t\t{"name": "a\\tb"}\n\t],\n\t"z": {}\n}\n'
    new = append_item(text, ("users",), {"name": "c"})
    assert new == text.replace('b"}', 'b"}, {"name": "c"}')
    assert json.loads(set_value(new, ("z", "k"), 1))["z"] == {"k": 1}


names = st.text("ab0:#-'\"{}[]&*!|> ,äé漢", min_size=1, max_size=6)
scalars = st.none() | st.booleans() | st.integers(-99, 99) | names
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3),
    max_leaves=6,
)
spaces = st.sampled_from(["", "\n", "# a comment\n", "\n  # indented\n\n"])


@st.composite
def documents(draw: st.DrawFn) -> tuple[str, dict[str, object]]:
    """A YAML text in any mixture of styles, with comments between its entries, and what it means."""
    import yaml

    value: dict[str, object] = {"entries": draw(st.lists(values, max_size=3)), **draw(st.dictionaries(names, values))}
    text = draw(spaces)
    for key in draw(st.permutations(sorted(value))):
        style = draw(st.sampled_from(["flow", "mixed", "block"]))
        if style == "flow":
            text += f"{json.dumps(key, ensure_ascii=False)}: {json.dumps(value[key], ensure_ascii=False)}\n"
        else:
            inner = yaml.safe_dump(
                value[key], default_flow_style=style == "mixed" and None, allow_unicode=True, width=20
            )
            text += f"{json.dumps(key, ensure_ascii=False)}:\n" + "".join(
                f"  {line}\n" for line in inner.removesuffix("...\n").splitlines()
            )
        text += draw(spaces)
    return text, value


@settings(max_examples=150, deadline=None)
@given(documents(), values)
def test_everything_outside_of_the_change_is_byte_identical(
    document: tuple[str, dict[str, object]], new: object
) -> None:
    text, value = document
    try:
        before = parse(text).value
    except ConfigurationError:
        assume(False)
    assume(before == value)  # Kubernetes reads some scalars otherwise than PyYAML writes them.
    assert isinstance(before, dict)
    try:
        appended = append_item(text, ("entries",), new)  # type: ignore[arg-type]
    except EditRefused:
        return
    assert parse(appended).value == {**before, "entries": [*before["entries"], new]}  # type: ignore[misc]
    start, end = kept_around(text, appended)
    # Only an empty list may give way to the one that is filled; a bracket of the new item may look like one of its own.
    lost = text[len(start) : len(text) - len(end)]
    assert lost.strip() in ("", "[]", "[", "]")


def test_an_item_is_removed_with_its_lines_and_comments_stay() -> None:
    without_a = COMMENTED.replace("  - name: \"a\"     # quoted\n    user: {token: 'x'}\n", "")
    assert remove_item(COMMENTED, ("users",), 0) == without_a
    assert remove_item(COMMENTED, ("users",), 1) == COMMENTED.replace(
        "  - name: b\n    user:\n      token: |+\n        y\n\n", ""
    )
    assert parse(remove_item(without_a, ("users",), 0)).value == {"users": [], "current-context": ""}


def test_any_item_can_be_removed(subtests: pytest.Subtests) -> None:
    for text in ['{"a": [1, 2, 3]}', "a: [1, 2, 3] # x\n", "a:\n- 1\n- 2\n- 3", "a:\r\n- 1\r\n- 2\r\n- 3\r\n"]:
        for position in [0, 1, 2]:
            with subtests.test(text=text, position=position):
                numbers = [1, 2, 3]
                del numbers[position]
                new = remove_item(text, ("a",), position)
                assert parse(new).value == {"a": numbers}
                assert new.count("\r") == new.count("\n") * ("\r" in text)


@given(st.lists(st.dictionaries(st.text("ab#: ", max_size=3), st.text("xy -:#", max_size=5), max_size=2), min_size=1))
@settings(max_examples=50)
def test_removing_means_what_it_says_or_is_refused(values: list[dict[str, str]]) -> None:
    text = "before: 1\nlist:\n" + "".join(f"- {json.dumps(value)}\n" for value in values) + "after: 2\n"
    new = remove_item(text, ("list",), len(values) - 1)
    assert parse(new).value == {"before": 1, "list": values[:-1], "after": 2}


def test_an_item_that_others_refer_to_is_not_removed() -> None:
    with pytest.raises(EditRefused):
        remove_item("a:\n- &x 1\n- *x\n", ("a",), 0)
