"""The keys of session tickets, the same in all workers of a gateway: clients resume whichever worker they reach.

Made by the supervisor, or by a worker that is alone; used by the worker's listener. They never leave the machine, and
are on no disk. Every few hours they are replaced by their hash, in each worker by itself: what was sealed with the ones
before cannot be opened any more, neither by a client nor by somebody who learns the new ones.
"""

from __future__ import annotations

import hashlib
import logging
import secrets
import ssl
from weakref import WeakKeyDictionary

from ostiary.core.clock import Clock

log = logging.getLogger("ostiary.gateway")

# A ticket is good for two hours, or until the keys are replaced.
PERIOD_SECONDS = 6 * 3600
SECRET_BYTES = 64
# A machine may learn the year after it has started. What is further away would take too long.
MOST_PERIODS = 200_000


class TicketKeys:
    """What tickets are sealed with. `to_json` and `from_json` carry it from the supervisor to a worker."""

    def __init__(self, secret: bytes, period: int, clock: Clock) -> None:
        self._secret, self._period, self._clock = secret, period, clock
        # The contexts that seal with them, each with what its keys are for.
        self._contexts: WeakKeyDictionary[ssl.SSLContext, bytes] = WeakKeyDictionary()
        self._is_unsupported = False

    @classmethod
    def create(cls, clock: Clock) -> TicketKeys:
        return cls(secrets.token_bytes(SECRET_BYTES), _period(clock), clock)

    @classmethod
    def from_json(cls, value: object, clock: Clock) -> TicketKeys:
        """The supervisor's; new ones if it did not answer, which only makes clients shake hands in full."""
        match value:
            case [str(secret), int(period)]:
                return cls(bytes.fromhex(secret), period, clock)
        return cls.create(clock)

    def to_json(self) -> list[str | int]:
        self.renew()
        return [self._secret.hex(), self._period]

    def __repr__(self) -> str:
        return f"TicketKeys(period={self._period})"

    def seal(self, context: ssl.SSLContext, *, purpose: bytes) -> None:
        """Seal the tickets of *context* with them, now and whenever they are replaced."""
        self.renew()
        self._contexts[context] = purpose
        self._seal(context, purpose)

    def renew(self) -> None:
        """Replace them if it is time. Called every now and then, by all workers: what they make is the same."""
        period = _period(self._clock)
        # A clock that goes back changes nothing.
        if period <= self._period:
            return
        if period - self._period > MOST_PERIODS:
            self._secret = secrets.token_bytes(SECRET_BYTES)
        else:
            for number in range(self._period + 1, period + 1):
                self._secret = hashlib.sha512(self._secret + number.to_bytes(8, "big")).digest()
        self._period = period
        for context, purpose in self._contexts.items():
            self._seal(context, purpose)

    def _seal(self, context: ssl.SSLContext, purpose: bytes) -> None:
        # Imported here: only those need it who speak TLS themselves.
        from ostiary.keys.openssl import seal_tickets

        if not seal_tickets(context, self._secret, purpose=purpose) and not self._is_unsupported:
            self._is_unsupported = True
            cause = "the ssl module of this Python cannot be given ticket keys"
            log.info("clients resume TLS sessions only at the worker that they came from", extra={"cause": cause})


def _period(clock: Clock) -> int:
    return int(clock.now().timestamp()) // PERIOD_SECONDS
