"""Keeps one token fresh: gets another one well before it expires, and keeps the old one as long as there is no other.

Run by the command; `sources` gets a token, and everybody in `outputs` is given each new one.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import Enum

from ostiary.cli.agent.signalled_wait import SignalledWait
from ostiary.core.clock import Clock
from ostiary.errors import LoginRefused, OstiaryError
from ostiary.model import Secret

# Of the lifetime, when the next token is asked for: early enough for a client that reads the file once a minute, and
# not at the same moment in a thousand pods.
EARLIEST, LATEST = 0.55, 0.7
FIRST_RETRY = timedelta(seconds=1)
LONGEST_RETRY = timedelta(minutes=1)
# A machine that was suspended looks at the clock again within this time.
LONGEST_WAIT = 30.0


@dataclass(frozen=True, slots=True)
class HeldToken:
    """A token of the gateway, good until `expires_at` by the clock of this machine."""

    token: Secret
    expires_at: datetime
    user: str = ""


class TokenHealth(Enum):
    STARTING = "starting"
    FRESH = "fresh"
    # The last attempt failed, and the token in hand is still good.
    LATE = "late"
    EXPIRED = "expired"


Source = Callable[[], HeldToken]
Output = Callable[[HeldToken], None]
Say = Callable[[str], None]


class TokenKeeper:
    """One thread runs it; any thread may read `current` and `health`."""

    def __init__(
        self,
        source: Source,
        outputs: Sequence[Output],
        *,
        clock: Clock,
        say: Say,
        share: Callable[[], float] = lambda: random.uniform(EARLIEST, LATEST),  # noqa: S311  # no secret
    ) -> None:
        self._source = source
        self._outputs = outputs
        self._clock = clock
        self._say = say
        self._share = share
        self.current: HeldToken | None = None
        self._failures = 0
        self._failing = ""

    @property
    def health(self) -> TokenHealth:
        current = self.current
        if current is None:
            return TokenHealth.STARTING
        if current.expires_at <= self._clock.now():
            return TokenHealth.EXPIRED
        return TokenHealth.LATE if self._failures else TokenHealth.FRESH

    def run(self, waiting: SignalledWait) -> None:
        """Until *waiting* is ended. Who wakes it up wants a new token at once."""
        while not waiting.ended:
            next_at = self._clock.now() + self.refresh()
            while (rest := (next_at - self._clock.now()).total_seconds()) > 0:
                if waiting.wait(min(rest, LONGEST_WAIT)):
                    break

    def refresh(self) -> timedelta:
        """Try once to get a new token; returns how long to wait before the next attempt."""
        try:
            self.refresh_once()
        except OstiaryError as error:
            return self._record_failure(error)
        assert self.current is not None
        lifetime = self.current.expires_at - self._clock.now()
        return max(lifetime * self._share(), FIRST_RETRY / 10)

    def refresh_once(self) -> None:
        """Get a new token and give it out. Raises what the source or an output raises; the old one then stays."""
        token = self._source()
        for output in self._outputs:
            output(token)
        is_back = self._failures > 0
        self.current, self._failures, self._failing = token, 0, ""
        if is_back:
            self._say(f"there is a new token again, until {_format_time(token.expires_at)}")

    def _record_failure(self, error: OstiaryError) -> timedelta:
        self._failures += 1
        what = "refused" if isinstance(error, LoginRefused) else "failed"
        text = f"{error.summary}: {error.cause}" if error.cause else error.summary
        if text != self._failing:
            # The same trouble is told once: it may go on for hours.
            self._failing = text
            self._say(f"getting a token {what}: {text}; {self._what_is_left()}")
        wait = min(FIRST_RETRY * (1 << min(self._failures - 1, 10)), LONGEST_RETRY)
        return wait * (0.5 + self._share() / 2)

    def _what_is_left(self) -> str:
        current = self.current
        if current is None:
            return "there is no token yet; retrying"
        if current.expires_at <= self._clock.now():
            return f"the last one expired at {_format_time(current.expires_at)}; retrying"
        return f"the one in use is good until {_format_time(current.expires_at)}; retrying"


def _format_time(moment: datetime) -> str:
    return moment.astimezone().strftime("%Y-%m-%d %H:%M:%S")
