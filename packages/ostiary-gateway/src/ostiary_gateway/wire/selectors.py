"""Label and field selectors: parse them, and match objects. Pure.

They are parsed as Kubernetes does (``k8s.io/apimachinery``, packages labels and fields), so that a policy about
selectors applies to what the API server selects. Conditions that a review cannot express (``>`` and ``<``) are left out
of a decision: a selector with fewer conditions selects more objects, never fewer. Code that selects objects needs all
of them: `every_label_requirement`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from ostiary.model import Requirement

_IN, _NOT_IN, _EXISTS, _DOES_NOT_EXIST = "In", "NotIn", "Exists", "DoesNotExist"
GREATER, LESS = "Gt", "Lt"
_COMPARISONS = {"=": _IN, "==": _IN, "!=": _NOT_IN, ">": GREATER, "<": LESS}
_NOT_IN_A_REVIEW = frozenset((GREATER, LESS))
_SETS = {"in": _IN, "notin": _NOT_IN}

_TOKEN = re.compile(r"[ \t\r\n]*+(==|!=|[=!(),<>]|[^=!(),<> \t\r\n]++)")
_SYMBOLS = frozenset(("==", "!=", "=", "!", "(", ")", ",", "<", ">", ""))
_LABEL_NAME = re.compile(r"(?=.{1,63}\Z)[A-Za-z0-9](?:[-A-Za-z0-9_.]*[A-Za-z0-9])?")
_LABEL_PREFIX = re.compile(r"(?=.{1,253}\Z)[a-z0-9](?:[-a-z0-9]*[a-z0-9])?(?:\.[a-z0-9](?:[-a-z0-9]*[a-z0-9])?)*")
_INTEGER = re.compile(r"[+-]?[0-9]+")
_INT64 = 2**63


class SelectorError(ValueError):
    """The text is not a selector. The message does not quote it."""


# Label selectors.


def parse_label_selector(text: str) -> tuple[Requirement, ...]:
    """Return the conditions of a label selector that a review can express, in order; raises `SelectorError`."""
    every = every_label_requirement(text)
    return tuple(requirement for requirement in every if requirement.operator not in _NOT_IN_A_REVIEW)


def every_label_requirement(text: str) -> tuple[Requirement, ...]:
    """Return all conditions of a label selector, ``>`` (`GREATER`) and ``<`` (`LESS`) too; raises `SelectorError`."""
    tokens = _SelectorTokens(text)
    requirements: list[Requirement] = []
    while tokens.next:
        requirement = _label_requirement(tokens)
        requirements.append(requirement)
        if tokens.next == "," and tokens.take() and tokens.next:
            continue
        if tokens.next or tokens.last == ",":
            raise SelectorError("conditions are separated by single commas")
    return tuple(requirements)


class _SelectorTokens:
    """The words and symbols of a selector; `next` is empty at its end."""

    def __init__(self, text: str) -> None:
        self._tokens = _TOKEN.findall(text)
        self._position = 0
        self.last = ""

    @property
    def next(self) -> str:
        return self._tokens[self._position] if self._position < len(self._tokens) else ""

    def take(self) -> str:
        self.last = self.next
        self._position += 1
        return self.last

    def word(self) -> str:
        if self.next in _SYMBOLS:
            raise SelectorError("a name or a value is missing")
        return self.take()

    def expect(self, symbol: str) -> None:
        if self.take() != symbol:
            raise SelectorError(f"expected {symbol}")


def _label_requirement(tokens: _SelectorTokens) -> Requirement:
    absent = tokens.next == "!" and bool(tokens.take())
    key = tokens.word()
    check_label_key(key)
    if absent:
        return Requirement(key, _DOES_NOT_EXIST)
    if tokens.next in ("", ","):
        return Requirement(key, _EXISTS)
    operator = tokens.take()
    if operator in _SETS:
        values = _label_values(tokens)
        check_label_values(values)
        return Requirement(key, _SETS[operator], tuple(sorted(values)))
    if operator not in _COMPARISONS:
        raise SelectorError("expected an operator")
    value = "" if tokens.next in ("", ",") else tokens.word()
    check_label_values({value})
    if operator in "<>":
        _check_integer(value)
    return Requirement(key, _COMPARISONS[operator], (value,))


def _label_values(tokens: _SelectorTokens) -> set[str]:
    """Read a list in parentheses. Nothing between two commas is the empty value, as in Kubernetes."""
    tokens.expect("(")
    values: set[str] = set()
    while True:
        values.add("" if tokens.next in (",", ")") else tokens.word())
        if tokens.take() == ")":
            return values
        if tokens.last != ",":
            raise SelectorError("values are separated by commas, and end with a parenthesis")


def check_label_key(key: str) -> None:
    """Raise `SelectorError` if it is not a valid label key."""
    prefix, slash, name = key.rpartition("/")
    if not _LABEL_NAME.fullmatch(name) or (slash and not _LABEL_PREFIX.fullmatch(prefix)):
        raise SelectorError("it has a key that is no name of a label")


def check_label_values(values: Iterable[str]) -> None:
    """Raise `SelectorError` if one of these is not a valid label value."""
    if any(value and not _LABEL_NAME.fullmatch(value) for value in values):
        raise SelectorError("it has a value that no label can have")


def _check_integer(value: str) -> None:
    if not is_int64(value):
        raise SelectorError("what is compared must be a whole number")


def is_int64(value: str) -> bool:
    """Whether Go's ``strconv.ParseInt`` accepts it. No such number has more than twenty characters."""
    if not _INTEGER.fullmatch(value):
        return False
    # Any number of leading zeros is valid; Python does not parse thousands of digits.
    digits = value.lstrip("+-").lstrip("0") or "0"
    number = int(digits) if len(digits) < 20 else _INT64 + 1
    return -_INT64 <= (-number if value.startswith("-") else number) < _INT64


# Field selectors.

_TERM_END = re.compile(r"([^\\,]*+(?:\\.?[^\\,]*+)*)(,|\Z)", re.DOTALL)
_TERM = re.compile(r"(.*?)(!=|==|=)(.*)", re.DOTALL)
_VALUE = re.compile(r"[^\\,=]*+(?:\\[\\,=][^\\,=]*+)*", re.DOTALL)
_ESCAPED = re.compile(r"\\(.)", re.DOTALL)


def parse_field_selector(text: str) -> tuple[Requirement, ...]:
    """Return the conditions of a field selector, sorted as Kubernetes sorts them; raises `SelectorError`."""
    if any("\ud800" <= char <= "\udfff" for char in text):
        raise SelectorError("it is not UTF-8")
    requirements = (_field_requirement(term) for term in sorted(_terms(text)) if term)
    # Kubernetes ignores a condition without a field and without a value, whatever its operator: "=" selects everything.
    return tuple(requirement for requirement in requirements if requirement.key or requirement.values != ("",))


def _terms(text: str) -> list[str]:
    terms, position = list[str](), 0
    while True:
        term = _TERM_END.match(text, position)
        assert term is not None, "the expression matches at every position"
        terms.append(term[1])
        if not term[2]:
            return terms
        position = term.end()


def _field_requirement(term: str) -> Requirement:
    parts = _TERM.fullmatch(term)
    if parts is None or not _VALUE.fullmatch(parts[3]):
        raise SelectorError("a condition on a field is its name, = or !=, and a value")
    return Requirement(parts[1], _COMPARISONS[parts[2]], (_ESCAPED.sub(r"\1", parts[3]),))


# Authorization.


def readable(parse: Callable[[str], tuple[Requirement, ...]], text: str) -> tuple[Requirement, ...] | None:
    """Return the conditions of *text*; None if there are none, or it is invalid: then nothing restricts the request."""
    try:
        return parse(text) or None
    except SelectorError:
        return None


# Matching, as Kubernetes evaluates selectors. Used by APIs that serve lists themselves: if a policy allows a list only
# with a selector, the response must contain only what that selector selects.

T = TypeVar("T")
# Returns the labels, or the fields, of an object.
LabelsOf = Callable[[T], Mapping[str, str]]


def select(
    objects: Iterable[T],
    *,
    label_selector: str = "",
    field_selector: str = "",
    labels: LabelsOf[T] | None = None,
    fields: LabelsOf[T] | None = None,
) -> list[T]:
    """Return those of *objects* that both selectors select; raises `SelectorError`, which an API reports as a 400.

    *labels* and *fields* return those of an object. Without them, objects are documents in Kubernetes' form, and can be
    selected by name and namespace. An unknown field is an error in the selector.
    """
    label_requirements = every_label_requirement(label_selector)
    field_requirements = parse_field_selector(field_selector)
    labels_of: LabelsOf[T] = labels or metadata_labels
    fields_of: LabelsOf[T] = fields or metadata_fields
    return [
        item
        for item in objects
        if (not label_requirements or matches_labels(label_requirements, labels_of(item)))
        and (not field_requirements or matches_fields(field_requirements, fields_of(item)))
    ]


def matches_labels(requirements: Sequence[Requirement], labels: Mapping[str, str]) -> bool:
    return all(_matches_label(requirement, labels) for requirement in requirements)


def _matches_label(requirement: Requirement, labels: Mapping[str, str]) -> bool:
    value = labels.get(requirement.key)
    match requirement.operator:
        case "In":
            return value in requirement.values
        case "NotIn":
            return value not in requirement.values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
        case operator if operator in (GREATER, LESS):
            return value is not None and is_int64(value) and _is_beyond(operator, int(value), requirement.values[0])
    raise SelectorError("it has an unknown operator")


def _is_beyond(operator: str, value: int, bound: str) -> bool:
    return value > int(bound) if operator == GREATER else value < int(bound)


def matches_fields(requirements: Sequence[Requirement], fields: Mapping[str, str]) -> bool:
    """Raise `SelectorError` for an unsupported field: guessing would select too much, or too little."""
    for requirement in requirements:
        if requirement.key not in fields:
            raise SelectorError("it names a field that cannot be selected by")
        is_equal = fields[requirement.key] == requirement.values[0]
        if is_equal != (requirement.operator == "In"):
            return False
    return True


def metadata_labels(document: Any) -> Mapping[str, str]:
    """Return the labels of an object in Kubernetes' form."""
    labels = _metadata(document).get("labels") or {}
    return {str(key): str(value) for key, value in labels.items()}


def metadata_fields(document: Any) -> Mapping[str, str]:
    """Return the two fields by which every object can be selected."""
    metadata = _metadata(document)
    return {f"metadata.{name}": str(metadata.get(name) or "") for name in ("name", "namespace")}


def _metadata(document: Any) -> Mapping[str, Any]:
    metadata = document.get("metadata") if isinstance(document, Mapping) else None
    return metadata if isinstance(metadata, Mapping) else {}
