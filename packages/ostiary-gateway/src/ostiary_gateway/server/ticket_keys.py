"""Keys of TLS session tickets, shared by all workers of a gateway: clients can resume at any of them.

The keys never leave the machine and are never written to disk.
"""

from __future__ import annotations

import hashlib
import logging
import secrets
import ssl
from weakref import WeakKeyDictionary

from ostiary.core.clock import Clock

log = logging.getLogger("ostiary.gateway")

# A ticket is valid for two hours, or until the keys are replaced.
PERIOD_SECONDS = 6 * 3600
SECRET_BYTES = 64
# The clock of a machine may be corrected by decades after its start. Beyond this the hash chain would take too long.
MOST_PERIODS = 200_000


class TicketKeys:
    """The keys that seal tickets. `to_json` and `from_json` transfer them from the supervisor to a worker.

    Every few hours each worker replaces them by their hash, independently. Tickets sealed with earlier keys can no
    longer be opened, neither by a client nor by an attacker who learns the new keys.
    """

    def __init__(self, secret: bytes, period: int, clock: Clock) -> None:
        self._secret, self._period, self._clock = secret, period, clock
        # The contexts that seal with these keys, each with its purpose.
        self._contexts: WeakKeyDictionary[ssl.SSLContext, bytes] = WeakKeyDictionary()
        self._is_unsupported = False

    @classmethod
    def create(cls, clock: Clock) -> TicketKeys:
        return cls(secrets.token_bytes(SECRET_BYTES), _period(clock), clock)

    @classmethod
    def from_json(cls, value: object, clock: Clock) -> TicketKeys:
        """Return the keys that the supervisor sent.

        Without a response they are new, which only costs clients a full handshake.
        """
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
        """Seal the tickets of *context* with these keys, now and whenever they are replaced."""
        self.renew()
        self._contexts[context] = purpose
        self._seal(context, purpose)

    def renew(self) -> None:
        """Replace the keys if they are due. Called periodically by all workers, which derive the same keys."""
        period = _period(self._clock)
        # A clock that goes backwards changes nothing.
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
        # Imported lazily: only listeners that terminate TLS need it.
        from ostiary.keys.openssl import seal_tickets

        if not seal_tickets(context, self._secret, purpose=purpose) and not self._is_unsupported:
            self._is_unsupported = True
            cause = "the ssl module of this Python cannot be given ticket keys"
            log.info("clients resume TLS sessions only at the worker that they came from", extra={"cause": cause})


def _period(clock: Clock) -> int:
    return int(clock.now().timestamp()) // PERIOD_SECONDS
