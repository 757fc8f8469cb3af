"""Export, import and checks of the Redis token store (`PortableStore`, `ExaminesStore`, `Probes`)."""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import Mapping, Sequence

from ostiary.errors import ProviderError
from ostiary_gateway.interfaces.store_capabilities import StoredLog, StoredSession, StoreReport
from ostiary_gateway.sessions import check_storable
from ostiary_gateway.stores.redis import rows
from ostiary_gateway.stores.redis.connection import Argument, Reply, Unusable
from ostiary_gateway.stores.redis.script_calls import ScriptCalls, nearest_moment

# Items per script, which must not block the server for long.
SCANNED_AT_ONCE = 500
READ_AT_ONCE = 50
WRITTEN_AT_ONCE = 100


class StoreContents:
    """Export and import of the Redis token store."""

    _calls: ScriptCalls

    def __init__(self) -> None:
        # The ids of all sessions in order, while they are read page by page.
        self._ids: list[bytes] | None = None

    async def export_log(self) -> StoredLog:
        answer = await self._calls.read("marks")
        forgotten, listed = answer.value
        log = self._calls.understand(rows.read_log, listed, answer.time)
        entries = [entry for entry in log if entry.number > forgotten and entry.revocation is not None]
        undone = frozenset(entry.number for entry in entries if entry.undone)
        return StoredLog(
            answer.head, forgotten, tuple(entry.revocation for entry in entries if entry.revocation), undone
        )

    async def import_log(self, log: StoredLog) -> None:
        # Until the log is complete, everything before its end counts as deleted: a partial log admits no sign-in.
        answer = await self._calls.write("begin_log", log.head, confirmed=True)
        if answer.value is not None:
            raise self._calls.unavailable(
                Unusable(
                    f"its log of revocations is further: {int(answer.value)}, and not {log.head}",
                    "move into a store that no gateway uses; another prefix makes an empty one",
                )
            )
        for start in range(0, len(log.revocations), WRITTEN_AT_ONCE):
            arguments: list[Argument] = []
            for revocation in log.revocations[start : start + WRITTEN_AT_ONCE]:
                is_undone = revocation.sequence in log.undone
                arguments += rows.revocation_arguments(revocation, self._calls.to_server, is_undone=is_undone)
            await self._calls.write("fill_log", *arguments, confirmed=True)
        await self._calls.write("end_log", log.forgotten, confirmed=True)

    async def export_sessions(self, after: str, limit: int) -> list[StoredSession]:
        if self._ids is None or after == "":
            self._ids = await self._sorted_ids()
        page: list[StoredSession] = []
        position = bisect_right(self._ids, after.encode()) if after else 0
        while len(page) < limit and position < len(self._ids):
            ids = self._ids[position : position + min(READ_AT_ONCE, limit - len(page))]
            position += len(ids)
            page += await self._read_sessions(ids)
        if position >= len(self._ids):
            self._ids = None
        return page

    async def _sorted_ids(self) -> list[bytes]:
        ids: set[bytes] = set()
        cursor: bytes | int = 0
        while True:
            answer = await self._calls.read("session_ids", cursor, SCANNED_AT_ONCE)
            cursor, members = answer.value
            ids.update(members[::2])
            if cursor == b"0":
                return sorted(ids)

    async def _read_sessions(self, ids: Sequence[bytes]) -> list[StoredSession]:
        answer = await self._calls.read("export_sessions", *ids)
        return [self._calls.understand(_read_stored, row, tokens, answer.time) for row, tokens in answer.value]

    async def import_sessions(self, sessions: Sequence[StoredSession]) -> None:
        for stored in sessions:
            check_storable(stored.session, stored.tokens)
        # Called even if there is nothing to do: a closed store must raise.
        await self._calls.read("count")
        for start in range(0, len(sessions), WRITTEN_AT_ONCE):
            portion = sessions[start : start + WRITTEN_AT_ONCE]
            await asyncio.gather(*(self._import(stored) for stored in portion))

    async def _import(self, stored: StoredSession) -> None:
        sequence = "" if stored.session.sequence is None else stored.session.sequence
        arguments = rows.session_arguments(stored.session, self._calls.to_server)
        tokens = rows.token_arguments(stored.tokens, self._calls.to_server)
        answer = await self._calls.write(
            "import_session", *arguments, sequence, *tokens, confirmed=True, repeatable=True
        )
        if answer.value == b"taken":
            raise ProviderError(
                "a session cannot be stored",
                cause="another session has one of its tokens",
                where=self._calls.primary.description,
                code="token-store-unavailable",
            )


def _read_stored(row: Reply, tokens: Sequence[Reply], time: rows.Decode) -> StoredSession:
    session = rows.read_session(row, time)
    return StoredSession(session, tuple(rows.read_token(session.id, token, time) for token in tokens))


# Checks, for ``ostiary-gateway store check``.

LOOKED_AT_ONCE = 100
_MISTAKES = (
    "sessions that are listed have gone: they expired while nobody swept",
    "entries are missing in the indexes by user, group and expiry: a revocation may pass over these sessions",
    "tokens of sessions are missing, or belong to others",
)


class RedisExamination:
    """Checks of the Redis token store, for the operator."""

    _calls: ScriptCalls

    async def examine(self) -> StoreReport:
        facts = await self._calls.server_facts()
        counts = [0] * 5
        cursor: bytes | int = 0
        while cursor != b"0":
            answer = await self._calls.read("examine", cursor, LOOKED_AT_ONCE)
            cursor, *portion = answer.value
            counts = [count + more for count, more in zip(counts, portion, strict=True)]
        problems = [f"{count} {text}" for count, text in zip(counts[2:], _MISTAKES, strict=True) if count]
        details = (
            ("server", self._calls.primary.description),
            ("version", _version(facts)),
            ("append-only file", "yes" if facts.get("aof_enabled") == "1" else "no"),
            ("replicas", facts.get("connected_slaves", "unknown")),
            ("memory", f"{facts.get('used_memory_human', '?')} of {facts.get('maxmemory_human', '?')}"),
            ("sessions", str(counts[0])),
            ("tokens", str(counts[1])),
        )
        return StoreReport(details, tuple(problems), nearest_moment(self._calls.clock_of_server))

    async def probe(self) -> str:
        """Check that the server is reachable; describe it and its shortcomings."""
        facts = await self._calls.server_facts()
        await self._calls.read("count")
        name = "Valkey" if "valkey_version" in facts else "Redis"
        parts = [f"{name} {_version(facts)}", f"replicas: {facts.get('connected_slaves', 'unknown')}"]
        return ", ".join([*parts, *self._calls.primary.shortcomings(facts)])

    async def others_using(self) -> tuple[str, ...]:
        listening = await self._calls.count_listeners()
        return (f"gateway processes that wait for its revocations: {listening}",) if listening else ()


def _version(facts: Mapping[str, str]) -> str:
    return facts.get("valkey_version") or facts.get("redis_version", "unknown")
