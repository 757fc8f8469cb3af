"""Keeps the bodies of one request and its answer for the audit log, and the answer for those who count objects.

Made by the engine for the requests whose bodies the audit policy wants; filled by `upstream.proxied`.
"""

from __future__ import annotations


class Recorder:
    """The bodies that the audit policy wants, each up to a limit; one byte more shows that there was more."""

    def __init__(self, limit: int, *, request: bool, response: bool) -> None:
        self._limit = limit
        self._request: bytearray | None = bytearray() if request else None
        self._response: bytearray | None = bytearray() if response else None

    def request(self, data: bytes) -> None:
        self._keep(self._request, data)

    def response(self, data: bytes) -> None:
        self._keep(self._response, data)

    @property
    def request_body(self) -> bytes | None:
        return None if self._request is None else bytes(self._request)

    @property
    def response_body(self) -> bytes | None:
        return None if self._response is None else bytes(self._response)

    def _keep(self, body: bytearray | None, data: bytes) -> None:
        if body is not None and len(body) <= self._limit:
            body += data[: self._limit + 1 - len(body)]


# As large as an object can be in Kubernetes, and more.
LARGEST_ANSWER = 4 * 1024 * 1024


class AnswerRecorder(Recorder):
    """Keeps the whole answer, if it is not too large, and passes everything on to *audit*."""

    def __init__(self, audit: Recorder | None) -> None:
        super().__init__(LARGEST_ANSWER, request=False, response=True)
        self._audit = audit

    def request(self, data: bytes) -> None:
        if self._audit is not None:
            self._audit.request(data)

    def response(self, data: bytes) -> None:
        super().response(data)
        if self._audit is not None:
            self._audit.response(data)

    @property
    def whole_answer(self) -> bytes | None:
        body = self.response_body
        return None if body is None or len(body) > LARGEST_ANSWER else body
