"""The quick reader gives what the parser for all of YAML gives, or nothing."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ostiary.core.yaml import Document, parse_all
from ostiary.core.yaml.fast_yaml import read_plain_blocks
from ostiary.errors import ConfigurationError

# What kubectl prints, what people write, and what looks nearly like it. Lines are mixed at random.
LINES = [
    "apiVersion: rbac.authorization.k8s.io/v1",
    "kind: RoleBinding",
    "metadata:",
    "  name: a",
    '  name: "b c"',
    "  name: 'x: y'",
    "  creationTimestamp: null",
    "  generation: 3",
    "  labels:",
    "    app.kubernetes.io/name: web",
    "  annotations:",
    "    note: two words, here",
    "    on: x",
    "subjects:",
    "- kind: User",
    "  name: 0x10",
    "  name: 1e400",
    "  name: yes",
    "- system:masters",
    "- 'a'",
    "  - kind: Group",
    "    name: devs",
    "  - x",
    "rules:",
    "- apiGroups:",
    '  - ""',
    "  verbs:",
    "  - get",
    "  - '*'",
    "  resources: [pods]",
    "---",
    "--- # why",
    "...",
    "%YAML 1.1",
    "# a comment",
    "  # an indented one",
    "",
    "   ",
    "key: a # trailing",
    "key: a#b",
    "key: |",
    "  text",
    "key: &a b",
    "key: *a",
    "key: 'it''s'",
    'key: "\\n"',
    "key:  two",
    "key: a ",
    "key: .inf",
    "key: .5",
    "key: ~",
    "key: -5",
    "key: 12:30",
    "key: a: b",
    "key:",
    "key: \u00e4\u00f6",
    "key: a\ufeffb",
    "\tkey: a",
    "key: a\r",
    "key: \u2028",
    "? key",
    "- - a",
    "-",
    "<<: {a: b}",
    "'key': a",
    "yes: a",
    "1: a",
    "...",
    "      deep: a",
    "      - deep: a",
]


def full(text: bytes) -> list[Document] | None:
    try:
        documents = list(parse_all(text, file="f"))
    except ConfigurationError:
        return None
    return [replace(document, more=False) for document in documents if document.root.value is not None]


def check_same(text: bytes) -> bool:
    """Whether the quick reader read it."""
    documents = read_plain_blocks(text, file="f")
    if documents is None:
        return False
    assert [replace(document, more=False) for document in documents] == full(text)
    return True


@settings(max_examples=400, deadline=None)
@given(st.lists(st.sampled_from(LINES), max_size=9), st.booleans())
def test_any_mixture_of_lines_gives_what_the_full_parser_gives(lines: list[str], ends: bool) -> None:
    check_same(("\n".join(lines) + "\n" * ends).encode())


@settings(max_examples=150, deadline=None)
@given(st.binary(max_size=12), st.integers(0, 200))
def test_any_bytes_among_plain_lines_give_what_the_full_parser_gives(inserted: bytes, at: int) -> None:
    at = min(at, len(KUBECTL))
    check_same(KUBECTL[:at] + inserted + KUBECTL[at:])


@settings(max_examples=150, deadline=None)
@given(st.text("ab:- \n#'\"[]{}&*!|>%@`,?.\t~0\u00e9", max_size=40))
def test_any_small_text_gives_what_the_full_parser_gives(text: str) -> None:
    check_same(text.encode())
    check_same(f"key: {text}\nother: a\n---\nb: c\n".encode())


KUBECTL = b"""apiVersion: v1
items:
- apiVersion: rbac.authorization.k8s.io/v1
  kind: RoleBinding
  metadata:
    creationTimestamp: "2026-01-01T00:00:00Z"
    labels:
      app: web
    name: devs
    namespace: team-a
    resourceVersion: "123"
    uid: 8c6f4c9e-0d3b-4f5e-9d6e-000000000000
  roleRef:
    apiGroup: rbac.authorization.k8s.io
    kind: ClusterRole
    name: system:basic-user
  subjects:
  - apiGroup: rbac.authorization.k8s.io
    kind: User
    name: alice@example.com
  - kind: ServiceAccount
    name: robot
    namespace: team-a
kind: List
metadata:
  resourceVersion: ""
---
# by hand

kind: Role
rules:
  - verbs:
      - get
    apiGroups:
      - ''
    resources:
      - pods
"""


def test_what_kubectl_prints_is_read_without_the_full_parser(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = full(KUBECTL)
    monkeypatch.setattr("ostiary.core.yaml.fast_yaml.read_yaml", None)
    documents = read_plain_blocks(KUBECTL, file="f")
    assert documents is not None
    assert documents == expected
    assert documents[1].root.line == 30


def test_one_document_that_is_not_plain_is_read_by_the_full_parser_with_its_lines() -> None:
    text = KUBECTL + b"---\nkind: Role\nrules: [{verbs: [get]}]\n---\na: b\n"
    assert check_same(text)
    assert read_plain_blocks(text, file="f", most_irregular=10) is None
    assert read_plain_blocks(text, file="f", most_irregular=100) is not None


def test_what_is_wrong_or_reaches_further_is_left_to_the_full_parser(subtests: pytest.Subtests) -> None:
    cases = [
        b"a: b\n---\nc: [\n",
        b"a: b\na: c\n",
        b"\xff\xfea\x00",
        b"a: b\r\n",
        b"a: &x b\n---\nc: *x\n",
        b"%YAML 1.1\n---\na: b\n",
        b"\xef\xbb\xbfa: b\n---\na: [b]\n\xef\xbb\xbf",
    ]
    for text in cases:
        with subtests.test(text=text):
            assert read_plain_blocks(text, file="f") is None


def test_what_looks_nearly_plain_gives_what_the_full_parser_gives(subtests: pytest.Subtests) -> None:
    cases = [
        b"a: b\n---\n%YAML 1.1\n--- # why\nc: d\n",
        b"a: |\n  x\n---\nb: >\n  y\n\n---\nc: |+\n  z\n\n",
        b"a:\n- b\n-\n  c: d\n",
        b"a: b\n  - c\n",
        b"a: b\n# no end\n  c\n",
        b"a:\n  b:\n  - c\n  d: e\n",
        b"a:\n- b:\n- c\n",
        b'a: "b\n---\nc"\n',
        b"a: [\n---\n]\n",
        "\u00aa: \u0663\nb: \u00b2\n".encode(),
        b"a: 0o7\nb: 1_000\nc: 12:30:45\nd: 2026-01-01\ne: 0x1F\nf: 1.e3\ng: ~x\n",
        b"a" * 121 + b": b\n",
        b"a:\n- " + b"b " * 600 + b"c\n",
        b"".join(b" " * n + b"k:\n" for n in range(70)) + b" " * 70 + b"k: v\n",
        b'{"a": "b"}\n---\n{"c": "\\u0064"}\n',
    ]
    for text in cases:
        with subtests.test(text=text):
            check_same(text)
