"""Login transactions in memory, and the checks that all token stores share: valid text, times, tokens and objects.

`MemoryRecords` serves the memory token store, and the gateway if its token store has no records.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta

from ostiary.core.clock import SYSTEM_CLOCK, Clock
from ostiary.errors import ProviderError
from ostiary_gateway.interfaces import store_capabilities
from ostiary_gateway.interfaces.store_capabilities import LARGEST_OBJECT, LONGEST_KIND, LONGEST_NAME
from ostiary_gateway.interfaces.token_store import (
    LARGEST_DELEGATION,
    LARGEST_RECORD,
    MOST_RECORDS,
    Session,
    TokenKind,
    TokenRecord,
)


class MemoryRecords:
    """Implements `ostiary_gateway.interfaces.token_store.RecordStore`. Bounded: the oldest record is evicted."""

    def __init__(self, *, clock: Clock = SYSTEM_CLOCK) -> None:
        self._clock = clock
        self._records: dict[bytes, tuple[bytes, datetime]] = {}

    async def put_record(self, key_digest: bytes, data: bytes, expires_at: datetime) -> bool:
        check_record(data, expires_at)
        if await self.find_record(key_digest) is not None:
            return False
        # Removed first, so that the new record is the last to be evicted.
        self._records.pop(key_digest, None)
        if len(self._records) >= MOST_RECORDS:
            del self._records[next(iter(self._records))]
        self._records[key_digest] = (data, expires_at)
        return True

    async def find_record(self, key_digest: bytes) -> bytes | None:
        return self._living(self._records.get(key_digest))

    async def take_record(self, key_digest: bytes) -> bytes | None:
        return self._living(self._records.pop(key_digest, None))

    def sweep(self) -> None:
        now = self._clock.now()
        self._records = {key: record for key, record in self._records.items() if record[1] > now}

    def set_back(self, step: timedelta) -> None:
        """Adjust to a clock that was set back by *step*, so that lifetimes are unchanged."""
        now = self._clock.now()
        earlier = {key: (data, until - step) for key, (data, until) in self._records.items()}
        self._records = {key: record for key, record in earlier.items() if record[1] > now}

    def __len__(self) -> int:
        return len(self._records)

    def _living(self, kept: tuple[bytes, datetime] | None) -> bytes | None:
        return kept[0] if kept is not None and kept[1] > self._clock.now() else None


def check_record(data: bytes, expires_at: datetime) -> None:
    """Raise `ValueError` for a record that no store accepts."""
    if len(data) > LARGEST_RECORD:
        raise ValueError(f"a record holds {LARGEST_RECORD} bytes at most")
    if expires_at.tzinfo is None:
        raise ValueError("a time has no time zone")


# Checks shared by all token stores.

# If the clock was set back by less than this, time stands still until it has caught up.
CLOCK_TOLERANCE = timedelta(seconds=2)
_KIND_OF_OBJECT = re.compile(r"[a-z](-?[a-z0-9])*")
_NO_TEXT = re.compile("[\0\ud800-\udfff]")


def check_storable(session: Session, tokens: Sequence[TokenRecord] = ()) -> None:
    """Raise `ValueError` for text that a store could not store exactly, or for a time without a zone."""
    for text in _texts(session):
        check_text(text)
    _check_times(session.created_at, session.expires_at, session.last_used_at)
    check_tokens(tokens)


def check_tokens(tokens: Sequence[TokenRecord]) -> None:
    for token in tokens:
        _check_times(token.issued_at, token.expires_at)
        if token.delegation:
            _check_delegation(token)


def check_use(used: Mapping[str, datetime]) -> None:
    for session_id, moment in used.items():
        check_text(session_id)
        _check_times(moment)


def check_object(kind: str, name: str = "", data: bytes = b"", *, is_named: bool = True) -> None:
    """Raise `ValueError` for an object that no store accepts. Neither its name nor its contents are quoted."""
    if len(kind) > LONGEST_KIND or not _KIND_OF_OBJECT.fullmatch(kind):
        raise ValueError(f"a kind of objects is a lower-case word with hyphens, {LONGEST_KIND} characters at most")
    check_text(name)
    if is_named and not name:
        raise ValueError("an object has a name")
    if len(name.encode()) > LONGEST_NAME:
        raise ValueError(f"the name of an object has {LONGEST_NAME} bytes at most")
    if len(data) > LARGEST_OBJECT:
        raise ValueError(f"an object has {LARGEST_OBJECT} bytes at most")


def end_of_prefix(prefix: str) -> str | None:
    """Return the first text after all that begin with *prefix*, in the order of code points; None if there is none."""
    kept = prefix.rstrip(chr(sys.maxunicode))
    if not kept:
        return None
    last = ord(kept[-1]) + 1
    # Surrogates are not valid text.
    return kept[:-1] + chr(0xE000 if last == 0xD800 else last)


def too_many_objects(kind: str, where: str) -> ProviderError:
    return ProviderError(
        "the token store takes no more objects of this kind",
        cause=f'it has {store_capabilities.MOST_OBJECTS:,} of the kind "{kind}"',
        where=where,
        hint="delete those that nobody needs",
        code="token-store-full",
    )


def later_of(one: datetime | None, other: datetime | None) -> datetime | None:
    """Return the later time of last use."""
    return max((each for each in (one, other) if each is not None), default=None)


def _check_delegation(token: TokenRecord) -> None:
    check_text(token.delegation)
    if token.kind is not TokenKind.ACCESS:
        raise ValueError("only an access token has a delegation")
    if len(token.delegation.encode()) > LARGEST_DELEGATION:
        raise ValueError(f"a delegation has {LARGEST_DELEGATION} bytes at most")


def _check_times(*times: datetime | None) -> None:
    if any(time is not None and time.tzinfo is None for time in times):
        raise ValueError("a time has no time zone")


def check_text(text: str) -> None:
    # Neither error quotes the text. A surrogate has no UTF-8, and much software downstream treats NUL as the end of a
    # text.
    if _NO_TEXT.search(text):
        raise ValueError("a name has a character that is not text: NUL, or half of a pair")


def _texts(session: Session) -> Iterator[str]:
    user = session.user
    yield from (session.id, session.provider, session.client, session.name, user.username, user.uid, *user.groups)
    yield from session.origins
    for key, values in user.extra:
        yield from (key, *values)
    for group, source in session.sources:
        yield from (group, source)
