"""Reads what a bounded cache does not tell: how much of it one owner has."""

from __future__ import annotations

from collections.abc import Hashable
from typing import TypeVar

from ostiary.core.bounded_cache import BoundedByOwner

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


def bytes_of_owner(cache: BoundedByOwner[K, V], owner: Hashable) -> int:
    """How many bytes the entries of *owner* have."""
    owned = cache._owned.get(owner)
    return 0 if owned is None else owned.size
