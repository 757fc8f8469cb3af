"""Measure what an object counts under a limit: one, and the sums of its fields."""

from __future__ import annotations

from ostiary_gateway.providers.object_quota.settings import FieldSum, ObjectLimit
from ostiary_gateway.providers.object_quota.tally import Amounts
from ostiary_gateway.wire.quantity import THOUSANDTHS, format_quantity, parse_quantity

COUNT = "count"
_REPLICAS = ("spec", "replicas")


class NotCountable(ValueError):
    """A field of the object has a value that cannot be added up. The message does not quote the object."""


def measure(limit: ObjectLimit, document: object) -> Amounts:
    """Return the amounts of one object, in thousandths. Raises `NotCountable`."""
    return (THOUSANDTHS, *(_sum(each, document) for each in limit.sums))


def measure_scale(limit: ObjectLimit, scale: object, before: Amounts) -> Amounts:
    """Return the amounts of an object after its ``scale`` was written, which changes only the number of replicas."""
    sums = [
        _sum(each, scale) if each.path.steps == _REPLICAS else amount
        for each, amount in zip(limit.sums, before[1:], strict=True)
    ]
    return (before[0], *sums)


def _sum(field: FieldSum, document: object) -> int:
    total = 0
    try:
        for value in field.path.values(document):
            amount = parse_quantity(value)
            if amount < 0:
                raise ValueError("it is negative")
            total += amount
    except ValueError as error:
        raise NotCountable(f"{field.name} cannot be counted at {field.path}: {error}") from None
    return total


def nothing(limit: ObjectLimit) -> Amounts:
    return (0,) * len(limit.limits)


def item_names(limit: ObjectLimit) -> tuple[str, ...]:
    """The names of the items in a denial: the resources, and the names of the sums."""
    return ("+".join(f"count/{each}" for each in limit.resources), *(each.name for each in limit.sums))


def format_amounts(limit: ObjectLimit, amounts: Amounts) -> tuple[str, ...]:
    """Format amounts in the notation of the limit: ``3``, ``1500m``, ``8Gi``."""
    forms = (False, *(each.limit.is_binary for each in limit.sums))
    return tuple(format_quantity(amount, binary=binary) for amount, binary in zip(amounts, forms, strict=True))


def refusal(limit: ObjectLimit, wanted: Amounts, used: Amounts) -> str:
    """Describe the exceeded items in the words of Kubernetes' ResourceQuota."""
    exceeded = [
        place
        for place, most in enumerate(limit.limits)
        if most is not None and wanted[place] and used[place] + wanted[place] > most
    ]
    bounds = tuple(most or 0 for most in limit.limits)

    def part(word: str, amounts: Amounts) -> str:
        texts, names = format_amounts(limit, amounts), item_names(limit)
        return f"{word}: " + ",".join(f"{names[place]}={texts[place]}" for place in exceeded)

    parts = (part("requested", wanted), part("used", used), part("limited", bounds))
    return f"exceeded quota: {limit.name}, {', '.join(parts)}"
