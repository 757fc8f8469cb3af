"""Encoding of sessions, tokens and revocations in the arguments and results of the scripts. Pure."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime

from ostiary_gateway.interfaces.token_store import Found, Revocation, Session, SessionKind, TokenKind, TokenRecord
from ostiary_gateway.stores.redis.connection import Argument, Reply
from ostiary_gateway.stores.stored_session import (
    decode_kind,
    dump_parts,
    encode_kind,
    make_session,
    origin_in,
    origin_name,
    rest_of,
    user_parts,
)

# A number without a revocation: times were corrected, or revocations were lost.
GAP = "gap"

Encode = Callable[[datetime], int]
Decode = Callable[[int], datetime]


def session_arguments(session: Session, encode: Encode) -> list[Argument]:
    return [
        session.id,
        dump_parts([session.user.username, *user_parts(session)]),
        dump_parts(rest_of(session)),
        encode(session.created_at),
        encode(session.expires_at),
        session.kind.value,
        session.name,
        "" if session.last_used_at is None else encode(session.last_used_at),
        dump_parts([[origin_name(origin) for origin in session.origins], session.sealed_hint]),
    ]


def token_arguments(tokens: Sequence[TokenRecord], encode: Encode) -> list[Argument]:
    arguments: list[Argument] = []
    for token in tokens:
        times = encode(token.issued_at), encode(token.expires_at)
        arguments += [token.digest, token.kind.value, *times, token.delegation]
    return arguments


def read_session(row: Reply, decode: Decode) -> Session:
    session_id, user, rest, created_at, expires_at, sequence, kind, name, used_at, origin = row
    # A session of an earlier version has none.
    origin_names, hint = json.loads(origin) if origin else ((), "")
    return make_session(
        session_id.decode(),
        json.loads(user),
        json.loads(rest),
        decode(created_at),
        decode(expires_at),
        sequence,
        SessionKind(kind.decode()),
        name.decode(),
        decode(int(used_at)) if used_at else None,
        ([origin_in(each) for each in origin_names], hint),
    )


def read_found(digest: bytes, row: Reply, decode: Decode) -> Found:
    *token, session_row = row
    session = read_session(session_row, decode)
    return Found(read_token(session.id, (digest, *token), decode), session)


def read_token(session_id: str, row: Reply, decode: Decode) -> TokenRecord:
    digest, kind, issued_at, expires_at, delegation = row
    times = decode(issued_at), decode(expires_at)
    return TokenRecord(digest, session_id, *times, TokenKind(kind.decode()), delegation.decode())


@dataclass(frozen=True, slots=True)
class LogEntry:
    """One number of the log. `encoded` is the entry as the server stores it. A gap has no revocation."""

    number: int
    id: str
    encoded: bytes
    revocation: Revocation | None
    undone: bool


def read_log(reply: Reply, decode: Decode) -> list[LogEntry]:
    """Decode numbers and entries as scripts list them, in the order of the numbers."""
    entries = [_read_entry(int(number), entry, decode) for number, entry in zip(reply[::2], reply[1::2], strict=True)]
    return sorted(entries, key=lambda entry: entry.number)


def _read_entry(number: int, encoded: bytes, decode: Decode) -> LogEntry:
    # An entry of an earlier version has no owner.
    entry_id, kind, value, at, by, recorded_at, undone, *owner = json.loads(encoded)
    revocation = None
    if kind != GAP:
        moment = decode(int(at)) if at else None
        times = number, decode(int(recorded_at))
        what = decode_kind(kind, value)
        revocation = Revocation(*what, moment, by, *times, owner[0] if owner else "")
    return LogEntry(number, entry_id, encoded, revocation, bool(undone))


def revocation_arguments(revocation: Revocation, encode: Encode, *, is_undone: bool) -> list[Argument]:
    assert revocation.recorded_at is not None, "a revocation of a log was recorded"
    at = "" if revocation.at is None else encode(revocation.at)
    recorded_at = encode(revocation.recorded_at)
    number, (kind, value) = revocation.sequence, encode_kind(revocation)
    return [number, kind.value, value, at, revocation.by, recorded_at, int(is_undone), revocation.owner]
