"""Puts a changed provider configuration into force without a restart. The kubelet needs one.

    looks changed?  ->  read and check all of it  ->  swap it in whole     or: keep the old one and say why

Called by long-running programs beside a keyring. Looking costs a few `stat` calls, and only `check_now` looks:
from a thread that waits between two looks, or whenever the program thinks fit (on SIGHUP, say).
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable

from ostiary.core.clock import SYSTEM_CLOCK, Clock
from ostiary.errors import ConfigurationError
from ostiary.registry.config import EXTENSIONS, ProvidersConfig, load
from ostiary.registry.keyring import Keyring

POLL_SECONDS = 10.0
# A file that was written this recently may be written again without looking any different.
UNSETTLED_SECONDS = 2.0

_Look = tuple[tuple[str, int, int, int], ...]
log = logging.getLogger("ostiary.registry")


class Watch:
    """Keeps *keyring* at the configuration that stands at *path*, a file or a directory.

    *reload* reads and checks it; `config.load` does, unless given.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        keyring: Keyring,
        *,
        reload: Callable[[str], ProvidersConfig] = load,
        clock: Clock | None = None,
    ) -> None:
        self._path = os.fspath(path)
        self._keyring = keyring
        self._reload = reload
        self._clock = clock or SYSTEM_CLOCK
        self._checking = threading.Lock()
        self._seen: _Look | None = None
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self.last_error: ConfigurationError | None = None

    @property
    def hash(self) -> str:
        """Of the configuration in force."""
        return self._keyring.config.hash

    def check_now(self) -> bool:
        """Look, and put a changed configuration into force; says whether it did. Never raises for a bad file."""
        with self._checking:
            look = _look(self._path)
            # After an error always again: the missing executable may be there by now.
            if self.last_error is None and look == self._seen and self._is_settled(look):
                return False
            try:
                # What changes while it is read looks different from what was seen, and is read next time.
                config = self._reload(self._path)
            except ConfigurationError as error:
                self._note(error)
                return False
            finally:
                self._seen = look
            self.last_error = None
            if config.hash == self.hash:
                return False
            self._keyring.replace(config)
            log.info("the credential provider config %s is in force", config.hash)
            return True

    def start(self, *, every: float = POLL_SECONDS, pause: Callable[[float], bool] | None = None) -> None:
        """Look again and again from a thread. *pause* waits for so many seconds and returns True to stop."""
        if self._thread is not None:
            return
        wait_or_stop = pause or self._stop.wait
        self._thread = threading.Thread(
            target=self._run, args=(every, wait_or_stop), name="ostiary-registry-watch", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Stop looking. The configuration in force stays."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _run(self, every: float, wait_or_stop: Callable[[float], bool]) -> None:
        while not wait_or_stop(every) and not self._stop.is_set():
            try:
                self.check_now()
            except Exception:
                # A bug in one look must not end all later ones without a word.
                log.exception("the credential provider config cannot be watched at this moment")

    def _is_settled(self, look: _Look) -> bool:
        newest = max((modified for _, modified, _, _ in look), default=0)
        return self._clock.now().timestamp() - newest / 1e9 > UNSETTLED_SECONDS

    def _note(self, error: ConfigurationError) -> None:
        # Once, and not at every look while it stays the same.
        if str(error) != str(self.last_error):
            log.error("%s; the old one stays in force: %s", error.summary, error.cause, extra={"code": error.code})
        self.last_error = error


def _look(path: str) -> _Look:
    """How the files look from outside; nothing if they cannot be seen."""
    try:
        if not os.path.isdir(path):
            return (_look_of(path),)
        with os.scandir(path) as entries:
            names = sorted(entry.path for entry in entries if entry.name.endswith(EXTENSIONS))
        return tuple(_look_of(name) for name in names)
    except OSError:
        return ()


def _look_of(file: str) -> tuple[str, int, int, int]:
    # Through links: the files of a mounted ConfigMap are links, whose target is exchanged.
    seen = os.stat(file)
    return file, seen.st_mtime_ns, seen.st_size, seen.st_ino
