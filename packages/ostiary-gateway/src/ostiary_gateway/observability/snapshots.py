"""Snapshots of the metrics of one worker as JSON, and their merge into those of all workers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NotRequired, TypeAlias, TypedDict

Value: TypeAlias = float | list[float]
# The label values, and the number or the histogram. In JSON, the pair is a list.
Series: TypeAlias = tuple[list[str], Value]


class Family(TypedDict):
    """One metric with all its series. `merging` is ``sum`` or ``max``."""

    type: str
    help: str
    labels: list[str]
    merging: str
    series: list[Series]
    buckets: NotRequired[list[float]]


Snapshot: TypeAlias = dict[str, Family]


def merge(snapshots: Sequence[Snapshot]) -> Snapshot:
    """Merge the metrics of all workers. Families that only some workers have, during an update, are included."""
    merged: Snapshot = {}
    for snapshot in snapshots:
        for name, family in snapshot.items():
            if name not in merged:
                merged[name] = family
            elif family.get("buckets") == merged[name].get("buckets"):
                merged[name] = _merge_family(merged[name], family)
    return merged


def _merge_family(first: Family, second: Family) -> Family:
    values = {tuple(labels): value for labels, value in first["series"]}
    for labels, value in second["series"]:
        key = tuple(labels)
        values[key] = _merge_values(values[key], value, first["merging"]) if key in values else value
    return {**first, "series": [(list(labels), value) for labels, value in values.items()]}


def _merge_values(first: Value, second: Value, merging: str) -> Value:
    if isinstance(first, list) and isinstance(second, list):
        return [mine + theirs for mine, theirs in zip(first, second, strict=True)]
    if isinstance(first, list) or isinstance(second, list):
        # Two versions disagree about the type of this metric: use the first.
        return first
    return max(first, second) if merging == "max" else first + second
