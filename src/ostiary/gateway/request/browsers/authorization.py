"""Forwards an application's own ``Authorization`` header, where its upstream has ``passAuthorization``.

Called for requests whose sender is known by a cookie, or need not be known. Everywhere else the header is for us.
"""

from __future__ import annotations

from ostiary.core.tokens import well_formed
from ostiary.gateway.http1.headers import Scanned


def forward_authorization(scanned: Scanned) -> None:
    """Let the header go on to the upstream, unless it holds a token of ours, which never does."""
    authorization, scanned.authorization = scanned.authorization, None
    if authorization is None:
        return
    # Wherever it stands: upstreams differ in how many spaces and which schemes they take.
    if not any(well_formed(part) for part in authorization.split()):
        scanned.lines += b"Authorization: " + authorization + b"\r\n"
