"""An object is read in one way, or not at all. S46."""

from __future__ import annotations

import json
from contextlib import suppress

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from ostiary_gateway.interfaces.attributes import RequestContent
from ostiary_gateway.providers.kubernetes import object_reading
from ostiary_gateway.providers.kubernetes.object_reading import ODD, Unreadable, read_object

# Without what could be a merge, which is never read.
TEXTS = st.text(max_size=8).filter(lambda text: text != "<<")
DOCUMENTS = st.dictionaries(
    TEXTS,
    st.recursive(
        st.none() | st.booleans() | st.integers(-(2**31), 2**31) | TEXTS,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
        max_leaves=8,
    ),
    max_size=4,
)


LOADERS = [yaml.SafeLoader, *([yaml.CSafeLoader] if yaml.__with_libyaml__ else [])]


@pytest.fixture(params=LOADERS, ids=lambda loader: str(loader.__name__))
def loader(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both parsers that PyYAML may have."""
    monkeypatch.setattr(object_reading, "_LOADER", request.param)


def read(body: bytes, kind: str = "application/json", verb: str = "create") -> object:
    return read_object(verb, RequestContent((kind,), (), body))


@given(DOCUMENTS)
def test_json_is_read_as_it_is(document: dict[str, object]) -> None:
    assert read(json.dumps(document).encode()) == document


@given(DOCUMENTS)
def test_yaml_is_read_as_it_was_meant_or_not_at_all(document: dict[str, object]) -> None:
    """S46: whatever a scalar may be to another reader is not known here."""
    try:
        result = read(yaml.safe_dump(document, allow_unicode=True).encode(), "application/yaml")
    except Unreadable:
        return
    assert _same(result, document)


def _same(read_value: object, meant: object) -> bool:
    if read_value is ODD:
        return True
    if isinstance(read_value, dict) and isinstance(meant, dict):
        # A key is a name; YAML's own types of keys are no matter.
        return len(read_value) == len(meant)
    if isinstance(read_value, list) and isinstance(meant, list):
        return len(read_value) == len(meant) and all(map(_same, read_value, meant))
    return type(read_value) is type(meant) and read_value == meant


@given(
    st.binary(max_size=200),
    st.sampled_from(["create", "update", "patch", "delete"]),
    st.sampled_from(["application/json", "application/yaml", "application/apply-patch+yaml", "x"]),
)
def test_nothing_else_is_ever_raised(body: bytes, verb: str, kind: str) -> None:
    with suppress(Unreadable):
        assert isinstance(read(body, kind, verb), dict)


@given(st.text("abc{}[]:,-&*!'\"#|> \n<\t%", max_size=40))
def test_odd_yaml_is_read_or_refused(text: str) -> None:
    with suppress(Unreadable):
        assert isinstance(read(text.encode(), "application/yaml"), dict)


def test_forms_that_can_be_read(subtests: pytest.Subtests) -> None:
    cases = [
        ("application/json", "create"),
        ("Application/JSON; charset=utf-8", "update"),
        ("application/merge-patch+json", "patch"),
        ("application/strategic-merge-patch+json", "patch"),
        ("application/apply-patch+yaml", "patch"),
        ("application/yaml", "create"),
    ]
    for kind, verb in cases:
        with subtests.test(kind=kind, verb=verb):
            assert read(b'{"a": [1]}', kind, verb) == {"a": [1]}


def test_forms_that_cannot(subtests: pytest.Subtests) -> None:
    cases = [
        ("application/json", "patch", "another"),
        ("application/merge-patch+json", "create", "another"),
        ("application/json-patch+json", "patch", "a JSON patch"),
        ("application/vnd.kubernetes.protobuf", "create", "protobuf"),
        ("application/cbor", "create", "another"),
        ("application/json;x=y", "create", "parameters"),
    ]
    for kind, verb, cause in cases:
        with subtests.test(kind=kind, verb=verb, cause=cause), pytest.raises(Unreadable, match=cause):
            read(b"{}", kind, verb)


def test_json_with_two_readings_is_not_read(subtests: pytest.Subtests) -> None:
    cases = [
        b'{"a":1,"a":1}',
        b'{"b":{"a":1,"a":2}}',
        b'{"a":{"<<":{"b":1}}}',
        b'{"a":Infinity}',
        b"{'a':1}",
        b'{"a":1}{"b":2}',
        b"[" * 100_000,
        b'{"a":' * 100_000,
        b'\xef\xbb\xbf{"a":1}',
        b"null",
    ]
    for body in cases:
        with subtests.test(body=body), pytest.raises(Unreadable):
            read(body)


@pytest.mark.parametrize(
    "body",
    [
        b"a: 1\na: 2",
        b"a: &x 1\nb: *x",
        b"a: !!bool yes",
        b"<<: {a: 1}",
        b"a: 1\n---\nb: 2",
        b"%YAML 1.2\n---\na: 1",
        b"? [a]\n: 1",
        b"- a",
        b"a: [" * 200,
        b"# " + b"x" * 70_000 + b"\na: 1",
    ],
)
@pytest.mark.usefixtures("loader")
def test_yaml_with_two_readings_is_not_read(body: bytes) -> None:
    with pytest.raises(Unreadable):
        read(body, "application/yaml")


@pytest.mark.parametrize(
    "scalar", ["y", "Yes", "ON", "off", "True", "0o17", "017", "1_000", "1:30", "0x10", ".inf", "2001-01-01"]
)
@pytest.mark.usefixtures("loader")
def test_scalars_that_readers_differ_in_are_odd(scalar: str) -> None:
    assert read(f"a: {scalar}".encode(), "application/yaml") == {"a": ODD}


@pytest.mark.usefixtures("loader")
def test_scalars_of_which_all_know_the_type() -> None:
    text = b"a: true\nb: false\nc: 17\nd: ~\ne:\nf: \"yes\"\ng: 'true'\nh: text/plain-1.0_x\ni: |\n  on\n"
    assert read(text, "application/yaml") == {
        **{"a": True, "b": False, "c": 17, "d": None, "e": None},
        **{"f": "yes", "g": "true", "h": "text/plain-1.0_x", "i": "on\n"},
    }


def test_headers_that_change_the_bytes() -> None:
    with pytest.raises(Unreadable, match="compressed"):
        read_object("create", RequestContent((), ("gzip",), b"{}"))
    with pytest.raises(Unreadable, match="two content types"):
        read_object("create", RequestContent(("application/json", "application/yaml"), (), b"{}"))
    assert read_object("create", RequestContent((), ("identity",), b"{}")) == {}
