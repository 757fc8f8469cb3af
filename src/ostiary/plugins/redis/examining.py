"""What the store says of itself: for ``ostiary store check``, and whether a gateway uses it.

A base of the token store; the interface is `ostiary.interfaces.store_abilities.examining.ExaminesStore`.
"""

from __future__ import annotations

from collections.abc import Mapping

from ostiary.interfaces.store_abilities.examining import StoreReport
from ostiary.plugins.redis.script_calls import ScriptCalls
from ostiary.plugins.redis.times import nearest_moment

LOOKED_AT_ONCE = 100
_MISTAKES = (
    "sessions that are listed have gone: they expired while nobody swept",
    "entries are missing in the indexes by user, group and expiry: a revocation may pass over these sessions",
    "tokens of sessions are missing, or belong to others",
)


class RedisExamination:
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
        """For ``ostiary serve --check --online``: whether the server can be asked, and what it lacks."""
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
