"""Refusals of the gateway's own API: a Kubernetes ``Status``."""

from __future__ import annotations

from starlette.responses import JSONResponse, Response

from ostiary.wire.status import failure_object


def failure(code: int, reason: str, message: str) -> Response:
    return JSONResponse(failure_object(code, reason, message), status_code=code)
