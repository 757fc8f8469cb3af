"""An API server that has roles and bindings and nothing else: lists, watches, versions, and all that goes wrong.

    async with RbacCluster() as cluster:
        cluster.put("RoleBinding", binding("readers", "dev", "view", "alice"))
        cluster.url          # plain HTTP on this machine, served by the event loop of the test

It is quick enough for 100,000 bindings, and its time can be turned back. `tests.support.cluster` is the one that
kubectl works with. A page of a list is of the moment at which the list began, and a token for the next one can expire.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self
from urllib.parse import parse_qs, urlsplit

from ostiary_gateway.wire.rbac_served import PLURALS

Object = dict[str, Any]
GROUP = "rbac.authorization.k8s.io"
KINDS = {plural: kind for kind, plural in PLURALS.items()}
Key = tuple[str, str, str]
# Answers a request in place of the cluster if it returns True.
Script = Callable[["Asked"], Awaitable[bool]]


def role(name: str, namespace: str = "", *rules: Object) -> Object:
    metadata = {"name": name, **({"namespace": namespace} if namespace else {})}
    return {"metadata": metadata, "rules": list(rules)}


def rule(verbs: Iterable[str], *resources: str, **more: Any) -> Object:
    return {"verbs": list(verbs), "apiGroups": [""], "resources": list(resources), **more}


def binding(name: str, namespace: str, role_name: str, *users: str, role_kind: str = "ClusterRole") -> Object:
    metadata = {"name": name, **({"namespace": namespace} if namespace else {})}
    subjects = [{"apiGroup": GROUP, "kind": "User", "name": user} for user in users]
    return {
        "metadata": metadata,
        "subjects": subjects,
        "roleRef": {"apiGroup": GROUP, "kind": role_kind, "name": role_name},
    }


@dataclass
class Asked:
    """One request, and where its answer goes."""

    plural: str
    query: dict[str, str]
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    @property
    def is_watch(self) -> bool:
        return self.query.get("watch") == "true"

    def answer(self, status: int, body: bytes) -> None:
        head = f"HTTP/1.1 {status} X\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        self.writer.write(head.encode() + body)

    def refuse(self, status: int) -> None:
        self.answer(status, json.dumps({"kind": "Status", "apiVersion": "v1", "code": status}).encode())

    def begin_stream(self) -> None:
        self.writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n")

    def send_line(self, line: bytes) -> None:
        self.writer.write(b"%x\r\n%s\n\r\n" % (len(line) + 1, line))

    def end_stream(self) -> None:
        self.writer.write(b"0\r\n\r\n")


@dataclass
class State:
    """What etcd holds."""

    revision: int = 100
    objects: dict[Key, bytes] = field(default_factory=dict)
    # Revision, kind and line of every change that is remembered.
    history: list[tuple[int, str, bytes]] = field(default_factory=list)
    compacted: int = 0

    def copy(self) -> State:
        return State(self.revision, dict(self.objects), list(self.history), self.compacted)


class RbacCluster:
    def __init__(self) -> None:
        self.state = State()
        self.requests: list[str] = []
        self.script: Script | None = None
        self._tells = True
        self._watches: dict[asyncio.Queue[bytes | None], str] = {}
        # What each watch was not told yet.
        self._held: dict[asyncio.Queue[bytes | None], list[bytes]] = {}
        self._lists: dict[str, tuple[list[bytes], int]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._writers: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None
        self.port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    async def start(self) -> None:
        """At the same port as before, if it was started before."""
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Cut everything; what is stored stays."""
        assert self._server is not None
        # First accept nothing more, and let those begin that were accepted: asyncio would neither serve nor close them.
        for listening in self._server.sockets:
            asyncio.get_running_loop().remove_reader(listening.fileno())
        for _ in range(3):
            await asyncio.sleep(0)
        self._server.close()
        self.cut()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._server.wait_closed()

    # --- what a test does ---

    def put(self, kind: str, item: Object) -> None:
        """Create or change an object."""
        key = _key(kind, item)
        what = "MODIFIED" if key in self.state.objects else "ADDED"
        self._change(what, kind, item)

    def delete(self, kind: str, name: str, namespace: str = "") -> None:
        stored = json.loads(self.state.objects[kind, namespace, name])
        self._change("DELETED", kind, stored)

    def fill(self, kind: str, items: Iterable[Object]) -> None:
        """Store many objects without telling anybody."""
        for item in items:
            self.state.revision += 1
            item["metadata"]["resourceVersion"] = str(self.state.revision)
            self.state.objects[_key(kind, item)] = _encode(item)
        self.state.compacted = self.state.revision

    def stored(self, kind: str, namespace: str, name: str) -> Object | None:
        """An object as it was put, without its version; None if there is none."""
        data = self.state.objects.get((kind, namespace, name))
        if data is None:
            return None
        item: Object = json.loads(data)
        del item["metadata"]["resourceVersion"]
        return item

    def compact(self) -> None:
        """Forget every change so far, and every list that is under way."""
        self.state.compacted = self.state.revision
        self.state.history.clear()
        self._lists.clear()

    def restore(self, state: State) -> None:
        """Turn the time back, as a backup does: every watch is cut, too."""
        self.state = state.copy()
        self.cut()

    def end_watches(self) -> None:
        for watch in self._watches:
            watch.put_nowait(None)

    def cut(self) -> None:
        for writer in list(self._writers):
            writer.transport.abort()

    def bookmark(self) -> None:
        for watch, kind in self._watches.items():
            metadata = {"resourceVersion": str(self.state.revision), "creationTimestamp": None}
            watch.put_nowait(_event("BOOKMARK", kind, {"metadata": metadata}))

    def send(self, kind: str, line: bytes) -> None:
        """Say anything to those who watch *kind*."""
        for watch, watched in self._watches.items():
            if watched == kind:
                watch.put_nowait(line)

    @property
    def tells(self) -> bool:
        """Whether events are sent to those who watch. Those that are held back come later, in order: none is lost."""
        return self._tells

    @tells.setter
    def tells(self, tells: bool) -> None:
        self._tells = tells
        if tells:
            for watch, lines in self._held.items():
                for line in lines:
                    watch.put_nowait(line)
            self._held.clear()

    @property
    def watches(self) -> int:
        return len(self._watches)

    def count(self, plural: str, *, watch: bool) -> int:
        """How often *plural* was listed from the beginning, or watched."""
        targets = [urlsplit(target) for target in self.requests]
        queries = [parse_qs(target.query) for target in targets if target.path.endswith(f"/{plural}")]
        if watch:
            return sum("watch" in query for query in queries)
        # What is listed with a limit of one is only asked for its version.
        return sum(query.get("limit", ["1"]) != ["1"] and "continue" not in query for query in queries)

    # --- inside ---

    def _change(self, what: str, kind: str, item: Object) -> None:
        state, key = self.state, _key(kind, item)
        state.revision += 1
        item = {**item, "metadata": {**item["metadata"], "resourceVersion": str(state.revision)}}
        if what == "DELETED":
            del state.objects[key]
        else:
            state.objects[key] = _encode(item)
        line = _event(what, kind, item)
        state.history.append((state.revision, kind, line))
        if self.tells:
            self.send(kind, line)
        else:
            for watch, watched in self._watches.items():
                if watched == kind:
                    self._held.setdefault(watch, []).append(line)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self._writers.add(writer)
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                target = head.split(b" ", 2)[1].decode()
                self.requests.append(target)
                parts = urlsplit(target)
                query = {name: values[0] for name, values in parse_qs(parts.query).items()}
                asked = Asked(parts.path.rpartition("/")[2], query, reader, writer)
                if self.script is None or not await self.script(asked):
                    await self.serve(asked)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass
        finally:
            self._tasks.discard(task)
            self._writers.discard(writer)
            writer.transport.abort()

    async def serve(self, asked: Asked) -> None:
        if asked.plural not in KINDS:
            asked.refuse(404)
        elif asked.is_watch:
            await self._serve_watch(asked, KINDS[asked.plural])
        else:
            self._serve_list(asked, KINDS[asked.plural])

    def _serve_list(self, asked: Asked, kind: str) -> None:
        token, limit = asked.query.get("continue"), int(asked.query.get("limit", "0"))
        if token is None:
            items, revision = [data for key, data in self.state.objects.items() if key[0] == kind], self.state.revision
        elif token in self._lists:
            items, revision = self._lists.pop(token)
        else:
            asked.refuse(410)
            return
        page, rest = (items[:limit], items[limit:]) if limit else (items, [])
        metadata: Object = {"resourceVersion": str(revision)}
        if rest:
            metadata["continue"] = f"{revision}/{len(rest)}+/="
            self._lists[metadata["continue"]] = rest, revision
        head = {"kind": f"{kind}List", "apiVersion": f"{GROUP}/v1", "metadata": metadata}
        asked.answer(200, _encode(head)[:-1] + b',"items":[' + b",".join(page) + b"]}")

    async def _serve_watch(self, asked: Asked, kind: str) -> None:
        since, seconds = int(asked.query["resourceVersion"]), float(asked.query["timeoutSeconds"])
        if since < self.state.compacted:
            asked.refuse(410)
            return
        news: asyncio.Queue[bytes | None] = asyncio.Queue()
        for revision, changed, line in self.state.history:
            if changed == kind and revision > since:
                news.put_nowait(line)
        self._watches[news] = kind
        asked.begin_stream()
        # Whoever watches sends nothing more: the end of what it sends is the end of the watch.
        gone = asyncio.ensure_future(asked.reader.read(1))
        gone.add_done_callback(lambda _: news.put_nowait(None))
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    while (told := await news.get()) is not None:
                        asked.send_line(told)
                        await asked.writer.drain()
            asked.end_stream()
        finally:
            del self._watches[news]
            self._held.pop(news, None)
            gone.cancel()
            with suppress(asyncio.CancelledError, OSError):
                await gone


def _key(kind: str, item: Object) -> Key:
    return kind, item["metadata"].get("namespace", ""), item["metadata"]["name"]


def _encode(value: Object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def _event(what: str, kind: str, item: Object) -> bytes:
    return _encode({"type": what, "object": {"kind": kind, "apiVersion": f"{GROUP}/v1", **item}})
