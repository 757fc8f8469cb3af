"""A small API server over TLS that is as strict about credentials as kube-apiserver.

It checks the token and the client certificate of every request, also on connections that are already open.
"""

from __future__ import annotations

import json
import queue
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Self

import trustme

from tests.support.http_server import HttpServer, Request, Response, server_context

POD_LIST = {
    "kind": "PodList",
    "apiVersion": "v1",
    "metadata": {"resourceVersion": "1"},
    "items": [{"metadata": {"name": f"pod-{n}", "namespace": "default", "uid": f"u{n}"}} for n in range(5)],
}
VERSION = {"major": "1", "minor": "32", "gitVersion": "v1.32.0", "platform": "linux/amd64"}


@dataclass
class Rules:
    """Who is let in. With both sets empty, everybody is. A token of `single_use` is let in once."""

    tokens: set[str] = field(default_factory=set)
    certificates: set[str] = field(default_factory=set)
    single_use: set[str] = field(default_factory=set)

    def admit(self, request: Request) -> bool:
        if not self.tokens and not self.certificates and not self.single_use:
            return True
        if request.bearer in self.single_use:
            self.single_use.remove(request.bearer)
            return True
        return request.bearer in self.tokens or request.certificate in self.certificates


class ApiServer(HttpServer):
    """`rules` and `statuses`, those of its responses; `emit` feeds every open watch."""

    def __init__(self, ca: trustme.CA, *, hostname: str = "localhost") -> None:
        context = server_context(ca, hostname, "127.0.0.1", client_certificates=ssl.CERT_OPTIONAL)
        super().__init__(self._respond, tls=context, hostname=hostname)
        self.rules = Rules()
        self.statuses: list[int] = []
        self.barrier: threading.Barrier | None = None
        """When set, every request waits at it before its credential is checked."""
        self.first_event: dict[str, Any] | None = None
        """What every watch sees as soon as it is open."""
        self._watches: list[queue.Queue[dict[str, Any] | None]] = []
        self._watching = threading.Condition()

    @contextmanager
    def running(self) -> Iterator[Self]:
        with super().running():
            try:
                yield self
            finally:
                self.end_watches()

    def _respond(self, request: Request) -> Response:
        if self.barrier is not None:
            self.barrier.wait(30)
        response = self._admitted(request) if self.rules.admit(request) else UNAUTHORIZED
        self.statuses.append(response.status)
        return response

    def _admitted(self, request: Request) -> Response:
        if request.query.get("watch") in ("1", "true", "True"):
            return Response(200, self._watch(), {"Content-Type": "application/json"})
        match request.path.rpartition("/")[2]:
            case "forbidden":
                return _failure(403, "Forbidden")
            case "redirect":
                return Response(307, {}, {"Location": request.query["to"]})
            case "broken":
                return _failure(503, "ServiceUnavailable")
            case "pods":
                return Response(200, POD_LIST)
            case "version":
                return Response(200, VERSION)
        return Response(200, {"kind": "Echo", "method": request.method, "length": len(request.body)})

    # --- watches ---

    def _watch(self) -> Iterator[bytes]:
        events: queue.Queue[dict[str, Any] | None] = queue.Queue()
        if self.first_event is not None:
            events.put(self.first_event)
        with self._watching:
            self._watches.append(events)
            self._watching.notify_all()
        while (event := events.get()) is not None:
            yield json.dumps(event).encode() + b"\n"

    def wait_for_watches(self, count: int, timeout: float = 30) -> None:
        with self._watching:
            assert self._watching.wait_for(lambda: len(self._watches) >= count, timeout)

    def emit(self, event: dict[str, Any]) -> None:
        with self._watching:
            for events in self._watches:
                events.put(event)

    def end_watches(self) -> None:
        with self._watching:
            for events in self._watches:
                events.put(None)


def _failure(code: int, reason: str, **headers: str) -> Response:
    status = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": reason, "message": reason}
    return Response(code, {**status, "code": code}, headers)


UNAUTHORIZED = _failure(401, "Unauthorized", **{"WWW-Authenticate": 'Bearer realm="test"'})
