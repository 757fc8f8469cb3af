"""Estimates how many bytes attributes take in memory, on the high side. Used by caches bounded in bytes."""

from __future__ import annotations

from ostiary.core.caching.cache import size_of
from ostiary.model import Attributes, Requirement

# The objects themselves, without the text in them.
FIXED_BYTES = 1000


def attributes_size(attributes: Attributes) -> int:
    """All text in *attributes*: everything in them, the selectors too."""
    user, request = attributes.user, attributes.request
    texts = (
        *(user.username, user.uid, request.verb, request.method, request.path, request.modifier),
        *(request.api_group, request.api_version, request.namespace, request.resource, request.subresource),
        *(request.name, user.groups, user.extra, request.capabilities, request.upstream),
    )
    return size_of(texts) + _selector_size(request.field_selector) + _selector_size(request.label_selector)


def _selector_size(selector: tuple[Requirement, ...] | None) -> int:
    return sum(size_of((each.key, each.operator, each.values)) for each in selector or ())
