"""Whether a server may keep sessions at all, by what it says of itself (``INFO``). Called by `primary`."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from redis.exceptions import ReadOnlyError

from ostiary.plugins.redis.connection.failures import Unusable
from ostiary.plugins.redis.settings import RedisSettings

log = logging.getLogger("ostiary.redis")


def read_facts(info: bytes) -> dict[str, str]:
    lines = info.decode(errors="replace").splitlines()
    return dict(line.split(":", 1) for line in lines if ":" in line)


class ServerChecks:
    """Each warning is given once."""

    def __init__(self, settings: RedisSettings, description: str) -> None:
        self._settings, self._description = settings, description
        self._warned: set[str] = set()

    def judge(self, info: bytes) -> None:
        """Raise if the server must not be used."""
        facts = read_facts(info)
        if facts.get("role") != "master":
            raise ReadOnlyError("the server is a replica")
        policy = facts.get("maxmemory_policy", "unknown")
        if policy != "noeviction":
            raise Unusable(
                f"Redis would drop sessions and revocations when its memory is full: its maxmemory-policy is {policy}",
                "set maxmemory-policy to noeviction in the configuration of Redis",
            )
        for text in self.shortcomings(facts):
            if text not in self._warned:
                self._warned.add(text)
                log.warning(text, extra={"store": self._description})

    def shortcomings(self, facts: Mapping[str, str]) -> list[str]:
        """What an operator should know of a server that can be used."""
        warnings = []
        if facts.get("aof_enabled") != "1":
            warnings.append("Redis has no append-only file: sessions and revocations are lost when it restarts")
        if int(facts.get("connected_slaves", "0")) < self._settings.wait_replicas:
            warnings.append("Redis has fewer replicas than waitReplicas: nobody can sign in or out")
        return warnings
