"""Audit events as they are read back, ours and kube-apiserver's: typed, so that a million of them can be. Pure.

    line of a log  ->  decode_event  ->  RecordedEvent  ->  decode_user, decode_notes

Called by `ostiary.gateway.audit.recorded`. Most events of a log have the user and the annotations of an earlier one, so
these two are left as text: whoever reads many events decodes each text once. An event may hold whole objects, which
are not read at all.
"""

from __future__ import annotations

from typing import TypeVar

import msgspec

from ostiary.model import UserInfo

EVENT = "Event"
# The text of a user or of annotations that an event does not have.
NO_OBJECT = b"{}"

T = TypeVar("T")


class _Recorded(msgspec.Struct, rename="camel"):
    pass


class RecordedObject(_Recorded):
    """``objectRef``: what a request was about."""

    resource: str = ""
    namespace: str = ""
    name: str = ""
    api_group: str = ""
    api_version: str = ""
    subresource: str = ""


class RecordedStatus(_Recorded):
    """``responseStatus``: how it was answered."""

    code: int = 0
    message: str = ""


class RecordedEvent(_Recorded):
    """One event. `user`, `impersonated_user` and `annotations` are JSON text."""

    kind: str
    audit_id: str = msgspec.field(name="auditID")
    stage: str
    verb: str = ""
    request_uri: str = msgspec.field(name="requestURI", default="")
    user: msgspec.Raw = msgspec.Raw(NO_OBJECT)
    impersonated_user: msgspec.Raw = msgspec.Raw(NO_OBJECT)
    object_ref: RecordedObject | None = None
    response_status: RecordedStatus | None = None
    annotations: msgspec.Raw = msgspec.Raw(NO_OBJECT)
    source_ips: tuple[str, ...] | None = msgspec.field(name="sourceIPs", default=None)
    request_received_timestamp: str = ""


class RecordedUser(_Recorded):
    username: str = ""
    uid: str = ""
    groups: tuple[str, ...] | None = None
    extra: dict[str, tuple[str, ...] | None] | None = None


# Built once: building a decoder while another thread does the same crashes msgspec 0.22.
_EVENT = msgspec.json.Decoder(RecordedEvent)
_USER = msgspec.json.Decoder(RecordedUser | None)
_NOTES = msgspec.json.Decoder(dict[str, str] | None)


def decode_event(line: bytes) -> RecordedEvent | None:
    """The event on *line*; None if there is none, or only a part of one."""
    event = _decode(_EVENT, line)
    return event if event is not None and event.kind == EVENT else None


def decode_user(text: bytes) -> UserInfo | None:
    """The user of an event; None if it names nobody."""
    user = _decode(_USER, text)
    if user is None or not user.username:
        return None
    extra = tuple(sorted((key, values or ()) for key, values in (user.extra or {}).items()))
    return UserInfo(user.username, user.uid, user.groups or (), extra)


def decode_notes(text: bytes) -> dict[str, str]:
    """The annotations of an event; empty if it has none that can be read."""
    return _decode(_NOTES, text) or {}


def _decode(decoder: msgspec.json.Decoder[T], text: bytes) -> T | None:
    try:
        return decoder.decode(text)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        # What cannot be read is counted, and never quoted: a cut line may hold anything.
        return None
