"""Token store in Redis or Valkey, shared by replicas on many machines.

    store: {type: redis, address: "redis.example.com:6379", tls: {ca: ca.pem}, passwordFile: redis-password}

    find, add, renew, revoke -> one Lua script each -> the primary; with `waitReplicas`, its replicas too

Acknowledged writes have been executed by the primary, and with `waitReplicas` received by that many replicas. See
docs/decisions/0043 for what is lost when a primary fails, and how that is detected. The scripts are in ``lua/``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Self

from ostiary.core.clock import SYSTEM_CLOCK, Clock
from ostiary.core.yaml import ConfigSection
from ostiary.errors import LoginRefused, ProviderError
from ostiary_gateway.catalog import Context
from ostiary_gateway.interfaces.store_capabilities import ListedSession
from ostiary_gateway.interfaces.token_store import Found, Revocation, RevocationBatch, Session, SessionKind, TokenRecord
from ostiary_gateway.sessions import check_revocation, check_storable, check_tokens, check_use
from ostiary_gateway.settings.declare import read_settings
from ostiary_gateway.stores.redis import rows
from ostiary_gateway.stores.redis.connection import Argument, Unusable
from ostiary_gateway.stores.redis.listener import Listener
from ostiary_gateway.stores.redis.replica_state import RedisObjects, RedisReplicaState
from ostiary_gateway.stores.redis.script_calls import ScriptCalls
from ostiary_gateway.stores.redis.settings import RedisSettings
from ostiary_gateway.stores.redis.transfer import RedisExamination, StoreContents
from ostiary_gateway.stores.stored_session import encode_kind, origin_name, place_text, read_place

# Interval of polling for revocations while not subscribed.
UNHEARD_SECONDS = 0.25
# A reader that is further behind drops its cache, which costs less than reading them all.
MOST_AFTER = 10_000
SWEEP_BATCH = 200
# A revocation of many sessions that made no progress for so many microseconds is continued by another process.
ABANDONED_AFTER = 5_000_000
LISTED_AT_ONCE = 1000
MOST_COUNTED = 100_000


class RedisTokenStore(RedisReplicaState, RedisObjects, StoreContents, RedisExamination):
    """Implements `ostiary_gateway.interfaces.token_store.TokenStore`, and the capabilities that replicas need."""

    shared_between_processes = True
    # If the server writes to its disk; otherwise a warning is logged.
    survives_restart = True

    def __init__(self, settings: RedisSettings, *, clock: Clock | None = None, server_time: bool | None = None) -> None:
        """Create a store. *clock* is this machine's; with *server_time*, the server's clock decides expiry instead.

        Without either, they are the system's clock and the server's time; with only a *clock*, that one decides
        everything.
        """
        by_server = clock is None if server_time is None else server_time
        self._clock = clock or SYSTEM_CLOCK
        RedisReplicaState.__init__(self, ScriptCalls(settings, clock=self._clock, server_time=by_server))
        StoreContents.__init__(self)
        # Upheavals, which invalidate the readers' caches: how many were reported to the reader, and how many it has
        # handled.
        self._upheavals_told = self._upheavals_settled = 0
        self._finishing: asyncio.Task[None] | None = None
        self._listener = Listener(self._calls.primary, self._calls.key("revoked"))
        self._calls.primary.on_drop = self._listener.drop

    @classmethod
    def from_config(cls, fields: ConfigSection, context: Context) -> Self:
        settings = read_settings(RedisSettings, fields, context.directory)
        return cls(settings, clock=None if context.clock is SYSTEM_CLOCK else context.clock)

    def __repr__(self) -> str:
        return f"RedisTokenStore({self._calls.primary.description})"

    # Sessions and tokens.

    async def add(self, session: Session, tokens: Sequence[TokenRecord]) -> None:
        check_storable(session, tokens)
        sequence = "" if session.sequence is None else session.sequence
        answer = await self._calls.follow(
            "add", *self._session(session), sequence, *self._tokens(tokens), confirmed=True
        )
        if answer.value == b"revoked":
            raise LoginRefused(
                "this session has expired or was revoked: sign in again", cause="it was revoked during the sign-in"
            )
        self._check_not_taken(answer.value)

    async def add_tokens(self, session_id: str, tokens: Sequence[TokenRecord]) -> bool:
        check_tokens(tokens)
        answer = await self._calls.follow("add_tokens", session_id, *self._tokens(tokens), confirmed=True)
        self._check_not_taken(answer.value)
        return bool(answer.value == b"added")

    async def renew(
        self, spent: bytes, *, at: datetime, session: Session, tokens: Sequence[TokenRecord], since: int | None = None
    ) -> bool:
        check_storable(session, tokens)
        since_argument = "" if since is None else since
        arguments: list[Argument] = [*self._session(session), spent, self._calls.to_server(at), since_argument]
        answer = await self._calls.follow("renew", *arguments, *self._tokens(tokens), confirmed=True)
        self._check_not_taken(answer.value)
        return bool(answer.value == b"renewed")

    async def find(self, digest: bytes) -> Found | None:
        answer = await self._calls.look_up("find", digest)
        if answer.value is None:
            return None
        return self._calls.understand(rows.read_found, digest, answer.value, answer.time)

    async def session(self, session_id: str) -> Session | None:
        answer = await self._calls.look_up("session_by_id", session_id)
        if answer.value is None:
            return None
        return self._calls.understand(rows.read_session, answer.value, answer.time)

    async def sessions(
        self,
        *,
        username: str | None = None,
        group: str | None = None,
        kind: SessionKind | None = None,
        limit: int = 1000,
    ) -> list[Session]:
        first, also = _indexes(username, group)
        listed: dict[str, Session] = {}
        start, of_kind = 0, "" if kind is None else kind.value
        while len(listed) < limit:
            answer = await self._calls.read("list_sessions", first, also, start, LISTED_AT_ONCE, of_kind)
            looked_at, session_rows = answer.value
            for row in session_rows:
                session = self._calls.understand(rows.read_session, row, answer.time)
                listed.setdefault(session.id, session)
            if looked_at < LISTED_AT_ONCE:
                break
            start += looked_at
        return list(listed.values())[:limit]

    async def sessions_from(self, origin: str, *, limit: int = 1000) -> list[Session]:
        return await self.sessions(group=origin_name(origin), limit=limit)

    async def page_sessions(
        self,
        *,
        username: str | None = None,
        group: str | None = None,
        kind: SessionKind | None = None,
        after: str = "",
        limit: int = 100,
    ) -> list[ListedSession]:
        begin: list[Argument] = list(read_place(after)) if after else ["", ""]
        first, also = _indexes(username, group)
        page: list[ListedSession] = []
        of_kind, at_once = ("", min(limit, LISTED_AT_ONCE)) if kind is None else (kind.value, LISTED_AT_ONCE)
        while len(page) < limit:
            answer = await self._calls.read("page_sessions", first, also, at_once, of_kind, *begin)
            listed, *begin = answer.value
            for place, row in listed:
                session = self._calls.understand(rows.read_session, row, answer.time)
                page.append(ListedSession(session, place_text(int(float(place)), session.id)))
            if not begin:
                break
        return page[:limit]

    async def count_sessions(self, username: str, kind: SessionKind) -> int:
        if kind is SessionKind.SIGN_IN:
            # Sessions of an earlier version are in no index by kind. There are never many of these.
            return len(await self.sessions(username=username, kind=kind, limit=MOST_COUNTED))
        return int((await self._calls.read("count_sessions", username, kind.value)).value)

    async def note_use(self, used: Mapping[str, datetime]) -> None:
        check_use(used)
        arguments: list[Argument] = []
        for session_id, moment in used.items():
            arguments += [session_id, self._calls.to_server(moment)]
        await self._calls.write("note_use", *arguments, repeatable=True)

    async def sweep(self) -> int:
        swept = 0
        while True:
            answer = await self._calls.write("sweep", SWEEP_BATCH, repeatable=True)
            deleted, more = answer.value
            swept += int(deleted)
            if not more:
                return swept

    async def count(self) -> int:
        return int((await self._calls.read("count")).value)

    def _session(self, session: Session) -> list[Argument]:
        return rows.session_arguments(session, self._calls.to_server)

    def _tokens(self, tokens: Sequence[TokenRecord]) -> list[Argument]:
        return rows.token_arguments(tokens, self._calls.to_server)

    def _check_not_taken(self, value: bytes) -> None:
        if value == b"taken":
            raise self._calls.unavailable(Unusable("a token with this digest is there already"))

    # Revocations.

    async def revoke(self, revocation: Revocation) -> int:
        check_revocation(revocation, self._clock.now())
        at = "" if revocation.at is None else self._calls.to_server(revocation.at)
        kind, value = encode_kind(revocation)
        what = kind.value, value, at, revocation.by, revocation.owner
        answer = await self._calls.follow("revoke", *what, confirmed=True)
        ended, cursor, number, entry = answer.value
        self._calls.log.remember(self._calls.understand(rows.read_log, [number, entry], answer.time))
        return int(ended) + (0 if cursor == b"0" else await self._finish(number))

    async def _finish(self, number: bytes) -> int:
        """Continue a revocation of many sessions in portions, so that other clients are not blocked.

        The scan starts from the beginning: another server may have the data now, where a cursor is invalid.
        """
        ended, cursor = 0, b""
        while cursor != b"0":
            answer = await self._calls.write("finish", number, cursor or 0)
            portion, cursor = answer.value
            ended += int(portion)
        return ended

    async def marks(self) -> list[Revocation]:
        answer = await self._calls.read("marks")
        log = self._calls.understand(rows.read_log, answer.value[1], answer.time)
        return [entry.revocation for entry in reversed(log) if entry.revocation and not entry.undone]

    async def undo(self, sequence: int) -> bool:
        return bool((await self._calls.write("undo", sequence, confirmed=True)).value)

    async def revocations_after(self, sequence: int | None) -> RevocationBatch:
        if sequence is None:
            return RevocationBatch((await self._calls.follow("revocations_after", "", 0, repeatable=True)).head)
        # Confirmed: a primary that is cut off from its replicas may have been replaced.
        answer = await self._calls.follow("revocations_after", sequence, MOST_AFTER, confirmed=True, repeatable=True)
        forgotten, listed = answer.value
        log = self._calls.understand(rows.read_log, listed, answer.time)
        self._calls.log.remember(log)
        revocations = tuple(entry.revocation for entry in log if entry.revocation)
        complete = sequence >= forgotten and len(revocations) == answer.head - sequence
        self._upheavals_told = self._calls.upheavals
        return RevocationBatch(answer.head, revocations, complete and self._upheavals_told == self._upheavals_settled)

    async def wait_for_revocations(self, after: int, seconds: float) -> None:
        # A caller that waits again has dropped its cache. Until then, batches stay incomplete.
        self._upheavals_settled = self._upheavals_told
        self._listener.start()
        woken = self._listener.woken
        try:
            # Checked after subscribing: a revocation written before that does not wake this worker.
            if (await self.revocations_after(None)).head != after:
                return
            listening = self._listener.is_listening
            async with asyncio.timeout(seconds if listening else min(seconds, UNHEARD_SECONDS)):
                await woken.wait()
        except TimeoutError:
            pass

    async def heartbeat(self) -> None:
        await self._calls.recheck_server()
        answer = await self._calls.follow("heartbeat", ABANDONED_AFTER, confirmed=True, repeatable=True)
        if answer.value and (self._finishing is None or self._finishing.done()):
            # Not awaited: it may take minutes, and the heartbeat reports whether the store is writable.
            self._finishing = asyncio.get_running_loop().create_task(self._finish_all(answer.value))

    async def _finish_all(self, numbers: Sequence[bytes]) -> None:
        # After a failure the next heartbeat continues.
        with suppress(ProviderError):
            for number in numbers:
                await self._finish(number)

    async def close(self) -> None:
        await self._calls.close()
        await self._listener.close()
        if self._finishing is not None:
            # It ends by itself: all calls fail by now.
            await asyncio.wait([self._finishing])


def _indexes(username: str | None, group: str | None) -> tuple[str, str]:
    """Return the index that lists these sessions, and another one that must contain them, if any."""
    indexes = [f"user:{username}"] if username is not None else []
    indexes += [f"group:{group}"] if group is not None else []
    return (*indexes, "by_creation")[0], indexes[1] if len(indexes) > 1 else ""
