"""A credential of this job or pod, for any number of processes of it that want one at the same moment.

    ready? -> take it
      no   -> wait for the lock -> ready by now? take it -> find the proof -> exchange it -> keep it

Called by get-token, login and whoever else prints or uses one. It is `turn` without a person and without renewal.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass

from ostiary.cli.signin import files
from ostiary.cli.signin.gateway import GatewayClient
from ostiary.cli.signin.platforms.cache import WorkloadCache, cache_for
from ostiary.cli.signin.platforms.exchange import WorkloadToken, exchange_proof
from ostiary.cli.signin.platforms.proof import PlatformChoice
from ostiary.core.clock import SYSTEM_CLOCK, Clock
from ostiary.core.text import printable
from ostiary.errors import CredentialError, OstiaryError
from ostiary.model import Secret
from ostiary.wire.client_authentication import ExecAnswer

# Most clients give up on a plugin after a minute.
WAIT_SECONDS = 50.0


@dataclass(frozen=True, slots=True)
class WorkloadTurn:
    """How one process wants the credential of its job."""

    choice: PlatformChoice
    authorities_pem: str | None = None
    clock: Clock = SYSTEM_CLOCK

    def cache(self) -> WorkloadCache | None:
        return cache_for(self.choice, clock=self.clock)

    def credential(self, *, doubted: bool = False) -> tuple[ExecAnswer, WorkloadToken | None]:
        """One that is good for a while, and what it was exchanged for, if it was not in the cache.

        With *doubted* the gateway is asked whether it still knows the one that lies ready.
        """
        cache = self.cache()
        cached = None if cache is None else cache.ready()
        if cached is not None and not (doubted and self._is_rejected(cached)):
            return cached, None
        if cache is None:
            granted = self._exchange()
            return ExecAnswer(granted.token, None, None, granted.expires_at), granted
        with _hold_lock(cache):
            newer = cache.ready()
            if newer is not None and newer != cached:
                return newer, None
            granted = self._exchange()
            return cache.save(granted), granted

    def token(self) -> Secret:
        answer, _ = self.credential()
        assert answer.token is not None
        return answer.token

    def _exchange(self) -> WorkloadToken:
        return exchange_proof(self.choice, authorities_pem=self.authorities_pem, clock=self.clock)

    def _is_rejected(self, answer: ExecAnswer) -> bool:
        assert answer.token is not None
        try:
            GatewayClient(self.choice.server, authorities_pem=self.authorities_pem, clock=self.clock).whoami(
                answer.token
            )
        except CredentialError:
            return True
        except OstiaryError:
            # Nobody can say; what lies ready is the best there is.
            return False
        return False


def describe(granted: WorkloadToken | None) -> str:
    """What was found and asked, for ``--verbose``. No secret is in it."""
    if granted is None:
        return "the cached token of this job is used"
    until = granted.expires_at.astimezone().strftime("%H:%M:%S")
    subject = f" of {printable(granted.subject)}" if granted.subject else ""
    return f"{granted.platform}: the token{subject} from {granted.where} was exchanged; good until {until}"


@contextmanager
def _hold_lock(cache: WorkloadCache) -> Iterator[None]:
    """Wait for another process of this job that is asking. Without a lock two ask, and both get a token."""
    with ExitStack() as stack:
        with suppress(OstiaryError):
            stack.enter_context(files.hold_lock(cache.lock_file, WAIT_SECONDS))
        yield
