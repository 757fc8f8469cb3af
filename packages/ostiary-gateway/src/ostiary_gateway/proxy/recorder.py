"""Record request and response bodies, for the audit log and for providers that count objects."""

from __future__ import annotations


class Recorder:
    """The bodies for the audit log, each truncated to *limit* plus one byte, which shows the truncation."""

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


# Larger than any object in Kubernetes.
LARGEST_ANSWER = 4 * 1024 * 1024


class AnswerRecorder(Recorder):
    """Records the complete response, if it is not too large, and passes all data on to *audit*."""

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
