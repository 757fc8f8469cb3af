"""The settings of the admission provider ``object_quota``."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Annotated

from ostiary.core.yaml import ConfigSection, Json
from ostiary_gateway.providers.common.field_path import Condition, FieldPath
from ostiary_gateway.providers.object_quota.tally import MOST_ITEMS
from ostiary_gateway.settings.kinds import Duration, Integer, Names, Parsed, SettingKind, Text
from ostiary_gateway.settings.sections import Sections
from ostiary_gateway.wire.quantity import THOUSANDTHS, is_binary, parse_quantity

NAMESPACE, USER, GROUP, EVERYONE = PER = ("namespace", "user", "group", "everyone")
# Enough for any set of rules that an operator can oversee, and few enough to match with every write request.
MOST_LIMITS = 100
_RESOURCE = "[a-z0-9-]+(\\.[a-z0-9.-]+)?"


@dataclass(frozen=True, slots=True)
class QuantityLimit:
    """A quantity as written, and in thousandths."""

    text: str
    thousandths: int

    @property
    def is_binary(self) -> bool:
        return is_binary(self.text)


@dataclass(frozen=True)
class Quantity(SettingKind[QuantityLimit]):
    """A non-negative Kubernetes quantity."""

    @property
    def label(self) -> str:
        return "quantity, as in `20`, `500m` or `64Gi`"

    def read(self, fields: ConfigSection, key: str, directory: Path) -> QuantityLimit | None:
        value = fields.plain(key)
        if value is None:
            return None
        try:
            thousandths = parse_quantity(value)
        except ValueError:
            fields.problem("expected a quantity, as in 20, 500m or 64Gi", key)
            return None
        if thousandths < 0:
            fields.problem("it must not be negative", key)
            return None
        return QuantityLimit(str(value), thousandths)

    def schema(self) -> dict[str, Json]:
        return {"type": ["integer", "string"]}

    def blank(self) -> QuantityLimit:
        return QuantityLimit("0", 0)

    def write(self, value: QuantityLimit) -> Json:
        return value.text


@dataclass(frozen=True)
class PathToField(Parsed[FieldPath]):
    def blank(self) -> FieldPath:
        return FieldPath("", ("",))


@dataclass(frozen=True, slots=True)
class FieldSum:
    """One sum of a limit."""

    name: Annotated[str, Text("told to whoever is refused, as in `requests.cpu`")]
    path: Annotated[
        FieldPath,
        PathToField(
            "the field, as in `spec.containers[*].resources.requests.cpu`; an object without it counts as zero",
            FieldPath.parse,
            hint="names are separated by dots; [*] is every item of a list",
        ),
    ]
    limit: Annotated[QuantityLimit, Quantity("the most that it may come to")]


@dataclass(frozen=True, slots=True)
class ObjectLimit:
    """One limit. An empty condition matches every request."""

    name: Annotated[
        str,
        Text(
            "told to whoever is refused",
            pattern="[A-Za-z0-9._-]+",
            mistake="expected letters, digits, dots, dashes and underscores",
        ),
    ]
    resources: Annotated[
        tuple[str, ...],
        Names(
            "what is counted, together: `pods`, `deployments.apps`",
            pattern=_RESOURCE,
            mistake="expected a resource, as in pods or deployments.apps",
            least=1,
        ),
    ]
    per: Annotated[
        tuple[str, ...],
        Names("who shares the count: `namespace`, `user`, `group`, several of them, or `everyone`"),
    ] = (NAMESPACE,)
    count: Annotated[
        int | None, Integer("so many objects", least=0, mistake="it must not be negative", unset="no limit")
    ] = None
    sums: Annotated[tuple[FieldSum, ...], Sections("sums of fields", FieldSum, "One sum.")] = ()
    users: Annotated[frozenset[str], Condition("for requests of these users", unset="all")] = frozenset()
    groups: Annotated[frozenset[str], Condition("for requests of these groups", unset="all")] = frozenset()
    namespaces: Annotated[frozenset[str], Condition("in these namespaces", unset="all")] = frozenset()

    def check(self, fields: ConfigSection) -> None:
        if not fields.is_right("per", "count", "sums"):
            return
        if self.count is None and not self.sums:
            fields.problem("a limit needs count, sums, or both")
        if len(self.sums) >= MOST_ITEMS:
            fields.problem(f"at most {MOST_ITEMS - 1} sums", "sums")
        if len({each.name for each in self.sums}) < len(self.sums):
            fields.problem("two sums have the same name", "sums")
        unknown = [each for each in self.per if each not in PER]
        if unknown or not self.per:
            fields.problem(f"expected one or more of {', '.join(PER)}", "per")
        elif EVERYONE in self.per and len(self.per) > 1:
            fields.problem("everyone stands alone", "per")
        elif GROUP in self.per and not self.groups:
            fields.problem("a limit per group needs the groups that have one", "groups")

    @property
    def counts_by_owner(self) -> bool:
        """Whether the owner of an object matters."""
        return USER in self.per or GROUP in self.per

    @property
    def limits(self) -> tuple[int | None, ...]:
        """The limit of each item in thousandths. The first item is the number of objects."""
        count = None if self.count is None else self.count * THOUSANDTHS
        return (count, *(each.limit.thousandths for each in self.sums))


@dataclass(frozen=True, slots=True)
class ObjectQuotaSettings:
    """The settings of the admission provider ``object_quota``."""

    limits: Annotated[
        tuple[ObjectLimit, ...],
        Sections(
            "the limits; each one that covers a request counts",
            ObjectLimit,
            "One limit.",
            least=1,
            missing="there must be a limit",
        ),
    ]
    interval: Annotated[
        timedelta,
        Duration(
            "how often what is counted is compared with a list of the upstream",
            least=timedelta(seconds=1),
            mistake="it must be at least one second",
        ),
    ] = timedelta(minutes=5)
    list_as: Annotated[
        str,
        Text(
            "the user in whose name the upstream is asked what it has; needed with `identity: requestHeader`",
            unset="the gateway itself",
        ),
    ] = ""

    def check(self, fields: ConfigSection) -> None:
        if len({limit.name for limit in self.limits}) < len(self.limits):
            fields.problem("two limits have the same name", "limits")
        if len(self.limits) > MOST_LIMITS:
            fields.problem(f"at most {MOST_LIMITS} limits", "limits")
