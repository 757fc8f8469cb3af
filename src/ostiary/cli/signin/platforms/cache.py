"""The exchanged token between two runs of one job: a file that is sealed with the job's own secret.

Called by `credential`. `cached_workload_token` says what it is called and how it is sealed, and reads it when kubectl
asks. A job without a home, or with one that cannot be written, works without a cache. Files of jobs that are over are
cleared away when another one is written.
"""

from __future__ import annotations

import os
import secrets
from contextlib import suppress

from ostiary.cli.cached_token import file_content, usable_answer
from ostiary.cli.cached_workload_token import cache_entry, renewal_time, seal, unseal
from ostiary.cli.signin import files
from ostiary.cli.signin.platforms.exchange import WorkloadToken
from ostiary.cli.signin.platforms.proof import PlatformChoice
from ostiary.cli.signin.sessions import renewal_margin
from ostiary.core.clock import Clock
from ostiary.errors import OstiaryError
from ostiary.model import Secret
from ostiary.wire.client_authentication import V1, V1BETA1, ExecAnswer, decode_answer, encode_answer

PREFIX = "workload+"
# How many files of ended jobs are looked at when one is written.
MOST_CLEARED = 1000


class WorkloadCache:
    """What is kept for one job and one choice. Without a secret of the job nothing is ever kept."""

    def __init__(self, name: str, secret: Secret, *, clock: Clock) -> None:
        self._path, self._secret, self._clock = f"{files.folder()}/{name}", secret, clock

    @property
    def askers_file(self) -> str:
        return f"{self._path}.asked"

    @property
    def lock_file(self) -> str:
        return f"{self._path}.lock"

    def ready(self) -> ExecAnswer | None:
        """The credential, if it is good for a while, and its file can be trusted."""
        try:
            sealed = files.read(f"{self._path}.token")
        except OstiaryError:
            return None
        data = None if sealed is None else unseal(sealed, self._key)
        answer = None if data is None else usable_answer(data, b"v1", self._clock.now().timestamp())
        return None if answer is None else decode_answer(answer, api_version=V1)

    def save(self, granted: WorkloadToken) -> ExecAnswer:
        """Keep *granted* if that is possible; gives what to answer with."""
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
        # Without a home, or on a read-only disk, the credential is good all the same.
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
    """The cache of this job; None where the job has nothing that another one does not have."""
    entry = cache_entry(choice.as_options(), dict(os.environb))
    if entry is None:
        return None
    name, secret = entry
    return WorkloadCache(name, Secret(secret.decode("utf-8", "surrogateescape")), clock=clock)


def _clear(folder: str, now: float) -> None:
    """Remove what has expired. Who finds no file for its job exchanges again, so nothing is lost by a race."""
    names = [name for name in os.listdir(folder) if name.startswith(PREFIX) and name.endswith(".token")]
    for name in names[:MOST_CLEARED]:
        path = os.path.join(folder, name)
        with suppress(OstiaryError, OSError):
            sealed = files.read(path) or b""
            renew_at = renewal_time(sealed)
            if renew_at is None or renew_at <= now:
                for kind in ("token", "asked", "lock"):
                    files.remove(f"{path.removesuffix('token')}{kind}")
