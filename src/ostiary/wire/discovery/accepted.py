"""Which of the types that a client accepts for a discovery document are JSON. Pure."""

from __future__ import annotations

JSON = "application/json"


def accepted_json(accept: str) -> str:
    """What of an ``Accept`` header is JSON, as it stands there; empty if the client wants none.

    The parameters stay: by them kubectl says that it wants aggregated discovery, and in which version.
    """
    entries = [entry.strip() for entry in accept.split(",") if entry.strip()]
    if not entries:
        return JSON
    as_json = [entry for entry in entries if _media_type(entry) == JSON]
    if as_json:
        return ",".join(as_json)
    return JSON if any(_media_type(entry) in ("*/*", "application/*") for entry in entries) else ""


def _media_type(entry: str) -> str:
    return entry.partition(";")[0].strip().lower()
