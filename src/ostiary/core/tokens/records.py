"""What logins under way must remember, in this process's memory.

Used by the memory token store, and by the gateway where its token store keeps no records. Bounded and cheap: the
oldest record makes room for the newest.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from ostiary.core.clock import SYSTEM_CLOCK, Clock
from ostiary.interfaces.token_store import LARGEST_RECORD, MOST_RECORDS


class MemoryRecords:
    """Implements `ostiary.interfaces.token_store.RecordStore`."""

    def __init__(self, *, clock: Clock = SYSTEM_CLOCK) -> None:
        self._clock = clock
        self._records: dict[bytes, tuple[bytes, datetime]] = {}

    async def put_record(self, key_digest: bytes, data: bytes, expires_at: datetime) -> bool:
        check_record(data, expires_at)
        if await self.find_record(key_digest) is not None:
            return False
        # Taken out first: a record that takes an expired one's place is as new as any.
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
        """The clock was set back by *step*: what is kept lives as long as it was meant to, and no longer."""
        now = self._clock.now()
        earlier = {key: (data, until - step) for key, (data, until) in self._records.items()}
        self._records = {key: record for key, record in earlier.items() if record[1] > now}

    def __len__(self) -> int:
        return len(self._records)

    def _living(self, kept: tuple[bytes, datetime] | None) -> bytes | None:
        return kept[0] if kept is not None and kept[1] > self._clock.now() else None


def check_record(data: bytes, expires_at: datetime) -> None:
    """Raise `ValueError` for a record that no store keeps."""
    if len(data) > LARGEST_RECORD:
        raise ValueError(f"a record holds {LARGEST_RECORD} bytes at most")
    if expires_at.tzinfo is None:
        raise ValueError("a time has no time zone")
