"""Applies a changed provider configuration without a restart. The kubelet needs one.

    changed?  ->  read and validate all of it  ->  replace it atomically     or: keep the old one and log why

``providers: []`` disables all providers. `WhenMissing` determines the effect of a missing configuration. A check costs
a few `stat` calls, and only `check_now` performs it: from a polling thread, or whenever the caller decides (on SIGHUP,
say).
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from enum import Enum

from ostiary.core.clock import SYSTEM_CLOCK, Clock
from ostiary.core.watched_file import Fingerprint, fingerprint, is_settled
from ostiary.errors import ConfigurationError
from ostiary.registry.keyring import Keyring
from ostiary.registry.kubelet.config import EXTENSIONS, load
from ostiary.registry.kubelet.model import ProvidersConfig

POLL_SECONDS = 10.0

_Look = dict[str, Fingerprint | None]
log = logging.getLogger("ostiary.registry")


class WhenMissing(Enum):
    """What happens when the file, or the last file of the directory, is removed. It is logged in any case.

    KEEP: the providers stay active; a file may be missing by accident. DISABLE: there are no providers any more.
    """

    KEEP = "keep"
    DISABLE = "disable"


def load_or_none(path: str) -> ProvidersConfig:
    """Load the configuration at *path*, whose list of providers may be empty."""
    return load(path, allow_empty=True)


class Watch:
    """Keeps *keyring* in sync with the configuration at *path*, a file or a directory.

    *reload* reads and validates it; by default `load_or_none`.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        keyring: Keyring,
        *,
        reload: Callable[[str], ProvidersConfig] = load_or_none,
        when_missing: WhenMissing = WhenMissing.KEEP,
        clock: Clock | None = None,
    ) -> None:
        self._path = os.fspath(path)
        self._keyring = keyring
        self._reload = reload
        self._when_missing = when_missing
        self._clock = clock or SYSTEM_CLOCK
        self._checking = threading.Lock()
        self._seen: _Look | None = None
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self.last_error: ConfigurationError | None = None

    @property
    def hash(self) -> str:
        """Return the hash of the active configuration."""
        return self._keyring.config.hash

    def check_now(self) -> bool:
        """Apply the configuration if it changed; returns whether it did. Never raises for an invalid file."""
        with self._checking:
            look = _look(self._path)
            # After an error always retry: a missing executable may have been installed.
            if self.last_error is None and look == self._seen and is_settled(look.values(), self._clock):
                return False
            try:
                # A change during the load gives a different fingerprint than the stored one and is read next time.
                config = self._reload(self._path)
            except ConfigurationError as error:
                disables = self._when_missing is WhenMissing.DISABLE and _is_missing(error)
                self._note(error, disables=disables)
                return disables and self._put_in_force(ProvidersConfig(()))
            finally:
                self._seen = look
            self.last_error = None
            return self._put_in_force(config)

    def _put_in_force(self, config: ProvidersConfig) -> bool:
        if config.hash == self.hash:
            return False
        self._keyring.replace(config)
        if config.providers:
            log.info("the credential provider config %s is in force", config.hash)
        else:
            log.warning("all credential providers are switched off")
        return True

    def start(self, *, every: float = POLL_SECONDS, pause: Callable[[float], bool] | None = None) -> None:
        """Check periodically from a thread. *pause* waits for the given seconds and returns True to stop."""
        if self._thread is not None:
            return
        wait_or_stop = pause or self._stop.wait
        self._thread = threading.Thread(
            target=self._run, args=(every, wait_or_stop), name="ostiary-registry-watch", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Stop checking. The configuration stays active."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _run(self, every: float, wait_or_stop: Callable[[float], bool]) -> None:
        while not wait_or_stop(every) and not self._stop.is_set():
            try:
                self.check_now()
            except Exception:
                # A bug in one check must not silently end all later ones.
                log.exception("the credential provider config cannot be watched at this moment")

    def _note(self, error: ConfigurationError, *, disables: bool) -> None:
        # Log once, and not on every check while the error stays the same.
        if str(error) != str(self.last_error):
            then = "no provider stays in force" if disables else "the old one stays in force"
            log.error("%s; %s: %s", error.summary, then, error.cause, extra={"code": error.code})
        self.last_error = error


def _is_missing(error: ConfigurationError) -> bool:
    """Return whether there is no file. One that cannot be read exists, and may have any content."""
    return error.code == "config-not-found" or isinstance(error.__cause__, FileNotFoundError)


def _look(path: str) -> _Look:
    """Return the fingerprints of the files; empty if they are not accessible."""
    try:
        if not os.path.isdir(path):
            return {path: fingerprint(path)}
        with os.scandir(path) as entries:
            return {entry.path: fingerprint(entry.path) for entry in entries if entry.name.endswith(EXTENSIONS)}
    except OSError:
        return {}
