"""Which objects the selectors of a list select, as Kubernetes evaluates them (``k8s.io/apimachinery``).

Called by APIs that serve lists themselves: where a policy allows a list only with a selector, the answer must hold only
what that selector selects. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from ostiary.model import Requirement
from ostiary.wire.request.selectors import (
    GREATER,
    LESS,
    SelectorError,
    every_label_requirement,
    is_int64,
    parse_field_selector,
)

T = TypeVar("T")
# The labels, or the fields, of an object.
LabelsOf = Callable[[T], Mapping[str, str]]


def select(
    objects: Iterable[T],
    *,
    label_selector: str = "",
    field_selector: str = "",
    labels: LabelsOf[T] | None = None,
    fields: LabelsOf[T] | None = None,
) -> list[T]:
    """Those of *objects* that both selectors select; raises `SelectorError`, for which an API answers 400.

    *labels* and *fields* say what an object has. Without them objects are documents in Kubernetes' form, of which the
    name and the namespace can be selected. A field that no object has is a mistake in the selector.
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
    """Raises `SelectorError` for a field that cannot be selected by: guessing would select too much, or too little."""
    for requirement in requirements:
        if requirement.key not in fields:
            raise SelectorError("it names a field that cannot be selected by")
        is_equal = fields[requirement.key] == requirement.values[0]
        if is_equal != (requirement.operator == "In"):
            return False
    return True


def metadata_labels(document: Any) -> Mapping[str, str]:
    """The labels of an object in Kubernetes' form."""
    labels = _metadata(document).get("labels") or {}
    return {str(key): str(value) for key, value in labels.items()}


def metadata_fields(document: Any) -> Mapping[str, str]:
    """The two fields that every object can be selected by."""
    metadata = _metadata(document)
    return {f"metadata.{name}": str(metadata.get(name) or "") for name in ("name", "namespace")}


def _metadata(document: Any) -> Mapping[str, Any]:
    metadata = document.get("metadata") if isinstance(document, Mapping) else None
    return metadata if isinstance(metadata, Mapping) else {}
