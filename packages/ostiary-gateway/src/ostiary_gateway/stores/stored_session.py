"""Encoding of sessions, tokens, times and list cursors, shared by the SQL stores and Redis.

A session's user is compact JSON text; indexed fields are stored beside it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from ostiary.model import UserInfo
from ostiary_gateway.interfaces.token_store import (
    Revocation,
    RevocationKind,
    Session,
    SessionKind,
    TokenKind,
    TokenRecord,
)

KINDS = {
    TokenKind.ACCESS: 0,
    TokenKind.RENEWAL: 1,
    TokenKind.SPENT: 2,
    TokenKind.BROWSER: 3,
    # 4 is `NARROWED`.
    TokenKind.APPLICATION: 5,
}
KIND_OF = {number: kind for kind, number in KINDS.items()}
# An access token with a delegation. Versions without delegations do not know this number and reject the token. With
# the number of an access token, they would grant it all rights of its session.
NARROWED = 4
SESSION_KINDS = {SessionKind.SIGN_IN: 0, SessionKind.EXCHANGE: 1, SessionKind.API_TOKEN: 2}
SESSION_KIND_OF = {number: kind for kind, number in SESSION_KINDS.items()}

# Defaults of the trailing parts of a session's body: name, origins and sealed hint were added later.
_PARTS: tuple[str | list[object], ...] = ("", [], [], "", [], "", "", "", [], "")
# An origin is indexed among the groups of a session, and its revocation is that of such a group. Versions without
# origins can therefore use the store too: to them it is a group without members.
_ORIGIN = "ostiary.dev/sign-in:"
_ORIGIN_NAME = re.compile(re.escape(_ORIGIN) + "([0-9a-f]{64})")

MICROSECOND = timedelta(microseconds=1)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def micros(moment: datetime) -> int:
    """Return microseconds since 1970: expiry is exact."""
    return (moment - _EPOCH) // MICROSECOND


def moment_of(value: int) -> datetime:
    return _EPOCH + timedelta(microseconds=value)


# Tokens.


def kind_number(token: TokenRecord) -> int:
    return NARROWED if token.delegation else KINDS[token.kind]


def decode_token(
    digest: bytes, session_id: str, kind: int, issued_at: int, expires_at: int, delegation: str
) -> TokenRecord:
    if kind == NARROWED and delegation:
        token_kind = TokenKind.ACCESS
    elif delegation:
        raise ValueError("a token has a delegation, and its kind does not say so")
    else:
        # The number of a scoped token without its delegation is not in `KIND_OF`.
        token_kind = KIND_OF[kind]
    return TokenRecord(digest, session_id, moment_of(issued_at), moment_of(expires_at), token_kind, delegation)


# Sessions.


def decode_session(
    session_id: str,
    username: str,
    created_at: int,
    expires_at: int,
    body: str,
    sequence: int,
    kind: int,
    used_at: int | None,
) -> Session:
    parts = json.loads(body)
    parts += _PARTS[len(parts) :]
    uid, groups, extra, provider, sources, client, sealed, name, origins, hint = parts[: len(_PARTS)]
    return make_session(
        session_id,
        (username, uid, groups, extra),
        (provider, sources, client, sealed),
        moment_of(created_at),
        moment_of(expires_at),
        sequence,
        SESSION_KIND_OF[kind],
        name,
        None if used_at is None else moment_of(used_at),
        (origins, hint),
    )


def make_session(
    session_id: str,
    user: tuple[str, str, Sequence[str], Sequence[tuple[str, Sequence[str]]]],
    rest: tuple[str, Sequence[Sequence[str]], str, str],
    created_at: datetime,
    expires_at: datetime,
    sequence: int,
    kind: SessionKind,
    name: str,
    last_used_at: datetime | None,
    origin: tuple[Sequence[str], str] = ((), ""),
) -> Session:
    """Build a session from decoded JSON. *user* is the name and the result of `user_parts`, *rest* that of `rest_of`.

    *origin* are `Session.origins` and `Session.sealed_hint`.
    """
    username, uid, groups, extra = user
    provider, sources, client, sealed = rest
    return Session(
        session_id,
        UserInfo(username, uid, tuple(groups), tuple([(key, tuple(values)) for key, values in extra])),
        provider,
        created_at,
        expires_at,
        tuple([(group, source) for group, source in sources]),
        client,
        sequence,
        sealed,
        kind,
        name,
        last_used_at,
        tuple(origin[0]),
        origin[1],
    )


def user_parts(of: Session) -> list[object]:
    """Return all of the user except the name."""
    return [of.user.uid, of.user.groups, of.user.extra]


def rest_of(of: Session) -> list[object]:
    return [of.provider, of.sources, of.client, of.sealed]


def encode_body(of: Session) -> str:
    """Encode everything except the id, the kind, the username and the times. The user comes first."""
    return dump_parts([*user_parts(of), *rest_of(of), of.name, of.origins, of.sealed_hint])


def dump_parts(parts: list[object]) -> str:
    return json.dumps(parts, ensure_ascii=False, separators=(",", ":"))


# Index: the groups and origins by which a session is found.


def index_names(of: Session) -> list[str]:
    return [*of.user.groups, *map(origin_name, of.origins)]


def index_names_in(body: str) -> list[str]:
    parts = json.loads(body)
    origins = parts[8] if len(parts) > 8 else ()
    return [*parts[1], *map(origin_name, origins)]


def origin_name(origin: str) -> str:
    return _ORIGIN + origin


def origin_in(name: str) -> str:
    return name.removeprefix(_ORIGIN)


def encode_kind(revocation: Revocation) -> tuple[RevocationKind, str]:
    """Return kind and value of a revocation as stores write them."""
    if revocation.kind is RevocationKind.ORIGIN:
        return RevocationKind.GROUP, origin_name(revocation.value)
    return revocation.kind, revocation.value


def decode_kind(kind: str, value: str) -> tuple[RevocationKind, str]:
    origin = _ORIGIN_NAME.fullmatch(value) if kind == RevocationKind.GROUP.value else None
    return (RevocationKind(kind), value) if origin is None else (RevocationKind.ORIGIN, origin[1])


# Cursors in a list of sessions: when a session began, in microseconds, and what orders those of the same moment.

# A session's id is short; the text comes from a URL.
_PLACE = re.compile(r"(-?[0-9]{1,18}):(.{1,256})", re.DOTALL)
_LARGEST = 2**63 - 1


def place_text(created_at: int, rest: str | int) -> str:
    return f"{created_at}:{rest}"


def read_place(text: str) -> tuple[int, str]:
    """Parse a cursor. Raises `ValueError` if it is invalid."""
    match = _PLACE.fullmatch(text)
    if match is None:
        raise ValueError("this is no place in the list of sessions")
    return int(match[1]), match[2]


def read_numbered_place(text: str) -> tuple[int, int]:
    """Like `read_place`, for a store that numbers its sessions."""
    created_at, rest = read_place(text)
    if not rest.isascii() or not rest.isdigit() or len(rest) > 19 or int(rest) > _LARGEST:
        raise ValueError("this is no place in the list of sessions")
    return created_at, int(rest)
