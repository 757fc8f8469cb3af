"""The end of the head of a request that is sent on: how its body is found, or which protocol comes next. Pure.

Called by whoever writes such a head. Framing is written anew, so the upstream cannot read it in another way than we do.
"""

from __future__ import annotations

from ostiary.gateway.http1.request_head import RequestHead

_UPGRADE_NAMES = {b"websocket": b"websocket", b"spdy/3.1": b"SPDY/3.1"}


def framing_lines(request: RequestHead) -> bytes:
    """The end of the last line before it, the lines, and the empty line."""
    lines = b"\r\n"
    if request.chunked:
        lines += b"Transfer-Encoding: chunked\r\n"
    elif request.content_length is not None:
        lines += b"Content-Length: %d\r\n" % request.content_length
    if request.upgrade:
        lines += b"Connection: Upgrade\r\nUpgrade: " + _UPGRADE_NAMES[request.upgrade] + b"\r\n"
    return lines + b"\r\n"
