"""Small durable named objects in a token store: service accounts, signing keys, and what else needs a place."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Protocol, runtime_checkable

# How many bytes an object has at most, and how many of one kind a store keeps.
LARGEST_OBJECT = 64 * 1024
MOST_OBJECTS = 100_000
# A kind is a short word of ours; a name may be anybody's, in bytes of UTF-8.
LONGEST_KIND = 64
LONGEST_NAME = 1024


@dataclass(frozen=True, slots=True)
class StoredObject:
    """`version` is another one after every change. `changed_at` is when this store wrote it down."""

    kind: str
    name: str
    data: bytes = field(repr=False)
    version: int
    changed_at: datetime


@runtime_checkable
class ObjectStore(Protocol):
    """A token store that also keeps objects, until somebody deletes them.

    What is in one means nothing to the store. A kind is a short lower-case word with hyphens. A name is any text but
    the empty one, and is kept exactly. A change that is acknowledged survives what an acknowledged session survives. No
    version is used twice, not even after an object was deleted. What is no such kind, name or object is refused with a
    `ValueError`; a kind that is full, with a `ProviderError` of the code token-store-full.
    """

    async def put_object(self, kind: str, name: str, data: bytes, *, version: int | None) -> int | None:
        """Store or replace it if it has this *version* now: 0 if it must not exist yet, None for whatever is there.

        Returns the new version; None, and nothing changes, if another version is there.
        """

    async def find_object(self, kind: str, name: str) -> StoredObject | None: ...

    async def list_objects(self, kind: str, *, after: str = "", limit: int = 1000) -> list[StoredObject]:
        """Those with larger names than *after*, by name in the order of code points, at most *limit*."""

    async def delete_object(self, kind: str, name: str, *, version: int | None = None) -> bool:
        """Delete it if it has this *version*, or whatever version with None. False if there is none such."""

    async def object_kinds(self) -> list[str]:
        """The kinds of which there are objects, in order."""


@runtime_checkable
class CountsStoredObjects(Protocol):
    """An `ObjectStore` that counts objects by the beginning of their names, without reading them.

    The gateway begins the names of what one user can cause with a digest of the user, and limits how many there are.
    In a store without this ability such objects are limited for all users together (`MOST_OBJECTS`) only.
    """

    async def count_objects(self, kind: str, prefix: str) -> int:
        """How many objects of *kind* have names that begin with *prefix*."""
