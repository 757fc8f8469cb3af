"""One rule, as a value."""

from __future__ import annotations

from dataclasses import dataclass, field

from ostiary.model import Place

ANY = "*"


@dataclass(frozen=True, slots=True)
class PolicyRule:
    """What is allowed: verbs on resources, or verbs on paths that are no resource's."""

    verbs: tuple[str, ...]
    api_groups: tuple[str, ...] = ()
    resources: tuple[str, ...] = ()
    resource_names: tuple[str, ...] = ()
    non_resource_urls: tuple[str, ...] = ()
    place: Place = field(default=Place(), compare=False, repr=False)
