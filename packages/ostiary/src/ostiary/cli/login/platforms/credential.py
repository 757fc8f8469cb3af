"""The credential of a job or pod: the platform's proof exchanged at the gateway, and cached between runs.

The cache file is sealed with the job's own secret; `cached_workload_token` defines its name and format. A job without a
writable home works without a cache. Writing a file removes the expired files of other jobs.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime

from ostiary.cli.cached_token import file_content, usable_answer
from ostiary.cli.cached_workload_token import cache_entry, renewal_time, seal, unseal
from ostiary.cli.login import sessions as files
from ostiary.cli.login.gateway import GatewayClient
from ostiary.cli.login.platforms.proof import PlatformChoice
from ostiary.cli.login.platforms.sources import find_proof
from ostiary.cli.login.sessions import renewal_margin
from ostiary.core.clock import SYSTEM_CLOCK, Clock
from ostiary.core.text import printable
from ostiary.errors import CredentialError, OstiaryError
from ostiary.model import Secret
from ostiary.wire.client_authentication import V1, V1BETA1, ExecAnswer, decode_answer, encode_answer

# Token exchange (RFC 8693, ``POST /auth/token``). The result is an access token only: when it expires, the platform's
# proof is exchanged again.


@dataclass(frozen=True, slots=True)
class WorkloadToken:
    """A token of the gateway, and the proof it was issued for. `expires_at` is by the clock of this machine."""

    token: Secret
    expires_at: datetime
    platform: str
    subject: str
    where: str


def exchange_proof(
    choice: PlatformChoice, *, authorities_pem: str | None = None, clock: Clock = SYSTEM_CLOCK
) -> WorkloadToken:
    """Find the proof of this job or pod, and exchange it at the gateway of *choice*. Nothing is cached.

    For applications that keep a token fresh themselves. Raises `CredentialError` if there is no proof, `LoginRefused`
    if the gateway denies it, and `ProviderError` if the platform or the gateway is unavailable.
    """
    proof = find_proof(choice, clock=clock)
    gateway = GatewayClient(choice.server, authorities_pem=authorities_pem, clock=clock)
    granted = gateway.exchange(proof.token, scope=choice.wanted_scope)
    return WorkloadToken(granted.token, granted.expires_at, proof.platform, proof.subject, proof.where)


PREFIX = "workload+"
# The maximum number of files to check for expiry when one is written.
MOST_CLEARED = 1000


class WorkloadCache:
    """The cache file of one job and one choice. Without a secret of the job, nothing is cached."""

    def __init__(self, name: str, secret: Secret, *, clock: Clock) -> None:
        self._path, self._secret, self._clock = f"{files.sessions_folder()}/{name}", secret, clock

    @property
    def askers_file(self) -> str:
        return f"{self._path}.asked"

    @property
    def lock_file(self) -> str:
        return f"{self._path}.lock"

    def ready(self) -> ExecAnswer | None:
        """Return the credential if it is still valid and its file is private."""
        try:
            sealed = files.read(f"{self._path}.token")
        except OstiaryError:
            return None
        data = None if sealed is None else unseal(sealed, self._key)
        answer = None if data is None else usable_answer(data, b"v1", self._clock.now().timestamp())
        return None if answer is None else decode_answer(answer, api_version=V1)

    def save(self, granted: WorkloadToken) -> ExecAnswer:
        """Save *granted* if possible, and return the credential to print."""
        answer = ExecAnswer(granted.token, None, None, granted.expires_at)
        now = self._clock.now()
        renew_at = int((granted.expires_at - renewal_margin(granted.expires_at - now)).timestamp())
        content = file_content(
            obtained=int(now.timestamp()),
            renew_at=renew_at,
            v1=encode_answer(answer, api_version=V1).encode(),
            v1beta1=encode_answer(answer, api_version=V1BETA1).encode(),
        )
        sealed = seal(content, self._key, renew_at=renew_at, nonce=secrets.token_bytes(16))
        # Without a writable home the credential is still usable.
        with suppress(OstiaryError):
            files.write(f"{self._path}.token", sealed)
            with suppress(OSError):
                files.remove(self.askers_file)
                _clear(os.path.dirname(self._path), now.timestamp())
        return answer

    @property
    def _key(self) -> bytes:
        return self._secret.reveal().encode("utf-8", "surrogateescape")


def cache_for(choice: PlatformChoice, *, clock: Clock) -> WorkloadCache | None:
    """Return the cache of this job. None if the job has no secret that other jobs lack."""
    entry = cache_entry(choice.as_options(), dict(os.environb))
    if entry is None:
        return None
    name, secret = entry
    return WorkloadCache(name, Secret(secret.decode("utf-8", "surrogateescape")), clock=clock)


def _clear(folder: str, now: float) -> None:
    """Remove expired files. A race is harmless: a job without its file exchanges again."""
    names = [name for name in os.listdir(folder) if name.startswith(PREFIX) and name.endswith(".token")]
    for name in names[:MOST_CLEARED]:
        path = os.path.join(folder, name)
        with suppress(OstiaryError, OSError):
            sealed = files.read(path) or b""
            renew_at = renewal_time(sealed)
            if renew_at is None or renew_at <= now:
                for kind in ("token", "asked", "lock"):
                    files.remove(f"{path.removesuffix('token')}{kind}")


# One exchange at a time, for concurrent processes of one job.
#
#     cached? -> use it
#       no    -> wait for the lock -> cached now? use it -> find the proof -> exchange it -> save

# Most clients give up on a plugin after a minute.
WAIT_SECONDS = 50.0


@dataclass(frozen=True, slots=True)
class WorkloadTurn:
    """How one process obtains the credential of its job. Like `Turn`, but without prompts and refresh."""

    choice: PlatformChoice
    authorities_pem: str | None = None
    clock: Clock = SYSTEM_CLOCK

    def cache(self) -> WorkloadCache | None:
        return cache_for(self.choice, clock=self.clock)

    def credential(self, *, doubted: bool = False) -> tuple[ExecAnswer, WorkloadToken | None]:
        """Return a credential that is valid for a while, and its exchange, or None if it was cached.

        With *doubted*, query the gateway whether the cached one is still valid.
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
            # The gateway is unreachable, so use the cached credential.
            return False
        return False


def describe(granted: WorkloadToken | None) -> str:
    """Describe the exchange for ``--verbose``, without secrets."""
    if granted is None:
        return "the cached token of this job is used"
    until = granted.expires_at.astimezone().strftime("%H:%M:%S")
    subject = f" of {printable(granted.subject)}" if granted.subject else ""
    return f"{granted.platform}: the token{subject} from {granted.where} was exchanged; good until {until}"


@contextmanager
def _hold_lock(cache: WorkloadCache) -> Iterator[None]:
    """Wait for another process of this job to finish. Without a lock, both exchange and both get a token."""
    with ExitStack() as stack:
        with suppress(OstiaryError):
            stack.enter_context(files.hold_lock(cache.lock_file, WAIT_SECONDS))
        yield
