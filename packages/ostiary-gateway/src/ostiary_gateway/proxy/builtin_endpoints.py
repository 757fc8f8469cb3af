"""Serves the paths that the gateway answers itself: its own APIs, and the open paths, which need no token of ours.

Called by the engine. The handlers are given to it: the doors and the login know what to answer, this knows what is
done around it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Mapping

from ostiary.model import RequestInfo
from ostiary_gateway.http1.body import BodyTooLarge, ClientGone, read_body
from ostiary_gateway.interfaces.attributes import RequestLine
from ostiary_gateway.proxy.context import Handler, OpenPath, Passage
from ostiary_gateway.proxy.head_cache import RememberedHeads
from ostiary_gateway.proxy.request_log import RequestRecords
from ostiary_gateway.proxy.request_tasks import RequestTasks
from ostiary_gateway.proxy.responses import Answers
from ostiary_gateway.proxy.revalidation import RecheckAfterWait
from ostiary_gateway.wire.request_info import request_info

# No request that we answer ourselves is larger; each kind has a limit of its own besides.
LARGEST_OWN_BODY = 1024 * 1024


class OpenPaths:
    """Paths that need no token of ours: /auth, and the webhooks, which know their callers otherwise."""

    def __init__(
        self,
        paths: Mapping[bytes, OpenPath],
        heads: RememberedHeads,
        tasks: RequestTasks,
        records: RequestRecords,
    ) -> None:
        self._paths = paths
        self._prefixes = tuple(paths)
        self._heads = heads
        self._tasks = tasks
        self._records = records

    def find(self, target: bytes) -> OpenPath | None:
        return self._paths.get(first_segment(target)) if target.startswith(self._prefixes) else None

    def begin_with(self, above: str) -> bool:
        """Whether one of them begins with *above*."""
        return any(path.startswith(above.encode("ascii")) for path in self._prefixes)

    def serve(self, path: OpenPath, passage: Passage) -> None:
        waiting = path.handler(passage, lambda code: self._conclude(path, passage, code))
        if waiting is not None:
            self._tasks.start_for(passage, _wait_for(waiting))

    def _conclude(self, path: OpenPath, passage: Passage, code: int) -> None:
        if code >= 400 and not path.records_refusals:
            reason = f"the gateway answered {code} at a path that needs no token"
            self._records.record_unidentified(passage, code, reason)
            self._records.record_refusal(passage, code, reason, None)
        if path.repeats and code == 200:
            self._heads.remember_open_path(passage, path)
        self._records.count(passage, code)


class OwnApis:
    """APIs of our own, which are decided on like any other request."""

    def __init__(self, recheck: RecheckAfterWait, answers: Answers, records: RequestRecords) -> None:
        self._recheck = recheck
        self._answers = answers
        self._records = records

    async def serve(self, handler: Handler, passage: Passage) -> None:
        request = passage.exchange.request
        if request.has_body and not passage.exchange.body_complete and not await self._read_body(passage):
            return
        code = 500
        try:
            code = await handler(passage)
        finally:
            self._records.conclude(passage, code)
        if code >= 400:
            self._records.record_refusal(passage, code, "refused by the gateway's own API", passage.plan)

    async def _read_body(self, passage: Passage) -> bool:
        """Wait for the whole body. The right to ask may be withdrawn meanwhile: False if the request is over."""
        exchange = passage.exchange
        try:
            body = await read_body(exchange, LARGEST_OWN_BODY)
        except ClientGone:
            self._records.conclude(passage, 0)
            return False
        except BodyTooLarge:
            passage.release()
            self._answers.send_too_large(passage)
            return False
        exchange.return_body(body)
        return await self._recheck.is_still_allowed(passage)


async def _wait_for(waiting: Awaitable[None]) -> None:
    await waiting


def first_segment(target: bytes) -> bytes:
    """The beginning of a path, as the keys of the open paths are written: ``/auth``."""
    end = target.find(b"/", 1)
    segment = target if end < 0 else target[:end]
    return segment.partition(b"?")[0]


# The mapper of the paths that the gateway answers itself: they have the form of Kubernetes' own.


class OwnPathsMapper:
    """Implements `ostiary_gateway.interfaces.attributes.AttributesMapper`."""

    def request_info(self, line: RequestLine) -> RequestInfo:
        return request_info(line)

    def long_running(self, info: RequestInfo) -> bool:
        return False
