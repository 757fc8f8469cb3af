"""Objects in the memory of one process. A base of the memory token store.

The interface is `ostiary.interfaces.store_abilities.stored_objects.ObjectStore`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import replace
from datetime import datetime, timedelta

from ostiary.core.tokens import check_object, too_many_objects
from ostiary.interfaces.store_abilities import stored_objects
from ostiary.interfaces.store_abilities.stored_objects import StoredObject


class MemoryObjects(ABC):
    def __init__(self) -> None:
        self._kinds: dict[str, dict[str, StoredObject]] = {}
        self._last_version = 0

    @abstractmethod
    def _check_open(self) -> None: ...

    @abstractmethod
    def _now(self) -> datetime: ...

    async def put_object(self, kind: str, name: str, data: bytes, *, version: int | None) -> int | None:
        self._check_open()
        check_object(kind, name, data)
        objects = self._kinds.setdefault(kind, {})
        current = objects.get(name)
        if version is not None and version != (current.version if current else 0):
            return None
        if current is None and len(objects) >= stored_objects.MOST_OBJECTS:
            raise too_many_objects(kind, "memory")
        self._last_version += 1
        objects[name] = StoredObject(kind, name, bytes(data), self._last_version, self._now())
        return self._last_version

    async def find_object(self, kind: str, name: str) -> StoredObject | None:
        self._check_open()
        check_object(kind, name)
        return self._kinds.get(kind, {}).get(name)

    async def list_objects(self, kind: str, *, after: str = "", limit: int = 1000) -> list[StoredObject]:
        self._check_open()
        check_object(kind, after, is_named=False)
        objects = self._kinds.get(kind, {})
        return [objects[name] for name in sorted(name for name in objects if name > after)[:limit]]

    async def count_objects(self, kind: str, prefix: str) -> int:
        self._check_open()
        check_object(kind, prefix, is_named=False)
        return sum(name.startswith(prefix) for name in self._kinds.get(kind, {}))

    async def delete_object(self, kind: str, name: str, *, version: int | None = None) -> bool:
        current = await self.find_object(kind, name)
        if current is None or version not in (None, current.version):
            return False
        del self._kinds[kind][name]
        return True

    async def object_kinds(self) -> list[str]:
        self._check_open()
        return sorted(kind for kind, objects in self._kinds.items() if objects)

    def _set_objects_back(self, step: timedelta) -> None:
        for objects in self._kinds.values():
            for name, stored in objects.items():
                objects[name] = replace(stored, changed_at=stored.changed_at - step)
