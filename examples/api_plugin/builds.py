"""In-memory storage of builds: create, get, replace, delete, list and watch."""

from __future__ import annotations

import queue
import threading
import uuid
from collections import deque
from datetime import UTC, datetime
from typing import Any

from examples.api_plugin.documents import API_VERSION, KIND

Build = dict[str, Any]
Key = tuple[str, str]


class Refusal(Exception):
    """An error response to a client."""

    def __init__(self, code: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.code, self.reason, self.message = code, reason, message


class Builds:
    """All builds by namespace and name. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._builds: dict[Key, Build] = {}
        self._revision = 1
        self._watchers: set[queue.SimpleQueue[dict[str, Any]]] = set()
        # The last changes with their revisions, for clients that list builds and then watch from that revision.
        self._changes: deque[tuple[int, dict[str, Any]]] = deque(maxlen=1000)

    def create(self, namespace: str, build: Build, *, user: str) -> Build:
        name = str(build.get("metadata", {}).get("name", ""))
        if build.get("kind") != KIND or not name:
            raise Refusal(422, "Invalid", "a Build needs a kind and a name")
        with self._lock:
            if (namespace, name) in self._builds:
                raise Refusal(409, "AlreadyExists", f'builds.builds.example.com "{name}" already exists')
            metadata = {
                **build["metadata"],
                "namespace": namespace,
                "uid": str(uuid.uuid4()),
                "creationTimestamp": f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}",
            }
            status = {"phase": "Pending", "requestedBy": user}
            new = {**build, "apiVersion": API_VERSION, "kind": KIND, "metadata": metadata, "status": status}
            return self._store("ADDED", (namespace, name), new)

    def get(self, namespace: str, name: str) -> Build:
        with self._lock:
            return self._find((namespace, name))

    def replace(self, namespace: str, name: str, build: Build) -> Build:
        with self._lock:
            old = self._find((namespace, name))
            metadata = {**old["metadata"], **build.get("metadata", {})}
            return self._store("MODIFIED", (namespace, name), {**old, **build, "metadata": metadata})

    def delete(self, namespace: str, name: str) -> Build:
        with self._lock:
            old = self._find((namespace, name))
            del self._builds[namespace, name]
            self._revision += 1
            self._tell("DELETED", old)
            return old

    def list(self, namespace: str) -> Build:
        with self._lock:
            items = [build for (where, _), build in sorted(self._builds.items()) if namespace in ("", where)]
            metadata = {"resourceVersion": str(self._revision)}
            return {"kind": f"{KIND}List", "apiVersion": API_VERSION, "metadata": metadata, "items": items}

    def watch(self, since: str) -> queue.SimpleQueue[dict[str, Any]]:
        """Return a queue of all changes after the revision *since*, or from now on. The caller must `unwatch` it."""
        changes: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        with self._lock:
            start = int(since) if since.isdecimal() else self._revision
            for revision, change in self._changes:
                if revision > start:
                    changes.put(change)
            self._watchers.add(changes)
        return changes

    def unwatch(self, changes: queue.SimpleQueue[dict[str, Any]]) -> None:
        with self._lock:
            self._watchers.discard(changes)

    def _find(self, key: Key) -> Build:
        build = self._builds.get(key)
        if build is None:
            raise Refusal(404, "NotFound", f'builds.builds.example.com "{key[1]}" not found')
        return build

    def _store(self, event: str, key: Key, build: Build) -> Build:
        self._revision += 1
        build["metadata"]["resourceVersion"] = str(self._revision)
        self._builds[key] = build
        self._tell(event, build)
        return build

    def _tell(self, event: str, build: Build) -> None:
        change = {"type": event, "object": build}
        self._changes.append((self._revision, change))
        for watcher in self._watchers:
            watcher.put(change)
