"""Cache the current credential of one exec plugin or auth-provider, and decide when the plugin runs again.

Threads and event loops share one authenticator. The first caller that finds no usable credential starts the plugin
through `ostiary.core.single_flight`; the others wait for the same future. The sync and the async API share this logic,
and cancelling one caller never cancels the run for the others.
"""

from __future__ import annotations

import logging
import os
import random
import threading
import weakref
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from functools import partial
from typing import Protocol

from ostiary.client.metrics import ExecMetrics, NoMetrics
from ostiary.client.retry_on_401 import Rejection
from ostiary.core import rotation
from ostiary.core.clock import SYSTEM_CLOCK, Clock
from ostiary.core.rotation import RefreshVerdict, State
from ostiary.core.single_flight import THREAD_LIMIT_REACHED, SingleFlight, wait, wait_async
from ostiary.errors import BackingOff, CredentialError
from ostiary.model import Credential

log = logging.getLogger("ostiary.client")


class Plugin(Protocol):
    """Obtains a credential for an authenticator: an exec plugin or an auth-provider."""

    def is_interactive(self) -> bool:
        """Whether a run may prompt the user now. Raises `CredentialError` if it must prompt but cannot."""

    def run(self, rejection: Rejection | None) -> Credential:
        """Return a credential. Raises `CredentialError`. Called in its own thread, one run at a time."""

    def expired_error(self, cause: str) -> CredentialError:
        """Return the error for a credential that had already expired when it was returned."""


class Authenticator:
    """A `CredentialSource` that runs an exec plugin only when a new credential is needed."""

    def __init__(
        self,
        plugin: Plugin,
        *,
        clock: Clock | None = None,
        metrics: ExecMetrics | None = None,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self.plugin = plugin
        self._clock = clock or SYSTEM_CLOCK
        self._metrics = metrics or NoMetrics()
        self._jitter = jitter
        # One run at a time. The lock of `SingleFlight` also guards the state.
        self._runs: SingleFlight[Future[Credential]] = SingleFlight(thread_name="ostiary-exec-plugin")
        self._state = State()

    # --- called by adapters and applications ---

    def get(self) -> Credential:
        """Return the credential to use now. Waits for the plugin if it must run."""
        current = self.current()
        return wait(current) if isinstance(current, Future) else current

    async def get_async(self) -> Credential:
        """Like `get`, for an event loop."""
        current = self.current()
        return await wait_async(current) if isinstance(current, Future) else current

    def current(self) -> Credential | Future[Credential]:
        # No lock: the state is replaced as a whole, and most calls return here.
        state = self._state
        if self._clock.now() < state.fresh_until:
            assert state.credential is not None
            return state.credential
        with self._runs.lock:
            return self._act()

    def replacement(self, rejected: Credential, rejection: Rejection) -> Credential | Future[Credential | None] | None:
        with self._runs.lock:
            verdict = rotation.judge_rejected(self._state, rejected, monotonic=self._clock.monotonic())
            if verdict is RefreshVerdict.USE:
                return self._state.credential
            run = self._runs.running()
            if run is None and verdict is RefreshVerdict.WAIT:
                return None
            if run is None:
                self._state = rotation.after_rejection(self._state)
            return _or_none(run or self._start(rejection))

    def note_accepted(self, credential: Credential) -> None:
        state = self._state
        if state.credential is credential and not state.accepted:
            with self._runs.lock:
                if self._state.credential is credential:
                    self._state = rotation.after_acceptance(self._state)

    @property
    def latest(self) -> Credential | None:
        """The credential returned last, even if it has expired. TLS contexts are built from it."""
        return self._state.credential

    # --- decisions, with the lock held ---

    def _act(self) -> Credential | Future[Credential]:
        verdict = rotation.judge(self._state, now=self._clock.now(), monotonic=self._clock.monotonic())
        run = self._runs.running()
        if verdict is RefreshVerdict.USE_AND_REFRESH and run is None and not self._asks_a_person():
            self._start(None)
        if verdict in (RefreshVerdict.USE, RefreshVerdict.USE_AND_REFRESH):
            assert self._state.credential is not None
            return self._state.credential
        if run is not None:
            return run
        if verdict is RefreshVerdict.WAIT:
            raise self._backing_off()
        return self._start(None)

    def _asks_a_person(self) -> bool:
        # A background refresh must not prompt the user.
        try:
            return self.plugin.is_interactive()
        except CredentialError:
            return True

    def _backing_off(self) -> BackingOff:
        error = self._state.error
        assert error is not None
        seconds = max(0.0, self._state.run_not_before - self._clock.monotonic())
        backing_off = BackingOff(
            error.summary,
            retry_after=seconds,
            cause=f"{error.cause}\n(not retried for {seconds:.1f} s, after {self._state.failures} "
            f"{'failure' if self._state.failures == 1 else 'failures'} in a row)",
            where=error.where,
            hint=error.hint,
        )
        backing_off.__cause__ = error
        return backing_off

    def _start(self, rejection: Rejection | None) -> Future[Credential]:
        return self._runs.start(Future(), partial(self._run, rejection), settle=self._settle)

    # --- the run, in its own thread ---

    def _run(self, rejection: Rejection | None) -> Credential:
        try:
            credential = self.plugin.run(rejection)
        except CredentialError as error:
            log.warning("%s: %s", error.summary, error.cause, extra={"code": error.code})
            raise
        self._measure(self._state.credential, credential)
        return credential

    def _settle(self, credential: Credential | None, error: BaseException | None) -> None:
        """Record the result of the run in the state. The caller holds the lock."""
        if credential is not None:
            self._state = self._state_after_success(self._state, credential=credential)
        elif isinstance(error, CredentialError) and error.code != THREAD_LIMIT_REACHED:
            self._state = self._state_after_failure(self._state, error=error)
        # Any other error is not a failure of the plugin and causes no backoff.

    def _state_after_failure(self, state: State, *, error: CredentialError) -> State:
        return rotation.after_failure(state, error, monotonic=self._clock.monotonic(), jitter=self._jitter())

    def _state_after_success(self, state: State, *, credential: Credential) -> State:
        now, monotonic = self._clock.now(), self._clock.monotonic()
        if not rotation.is_expired(credential, now):
            return rotation.after_success(state, credential, now=now, monotonic=monotonic, jitter=self._jitter())
        assert credential.expires_at is not None
        age = (now - credential.expires_at).total_seconds()
        error = self.plugin.expired_error(f"answered with a credential that had expired {age:.0f} s before")
        return rotation.after_expired_answer(state, credential, error, monotonic=monotonic, jitter=self._jitter())

    def _measure(self, old: Credential | None, new: Credential) -> None:
        before = old.certificate if old is not None else None
        after = new.certificate
        self._metrics.expires(self, after.not_after if after else None)
        if before is not None and before != after and before.not_before is not None:
            self._metrics.record_rotation(age_seconds=(self._clock.now() - before.not_before).total_seconds())


class OidcAuthenticator(Authenticator):
    """Like `Authenticator`, but for an ``oidc`` auth-provider. As in client-go, a 401 does not cause a refresh."""

    def replacement(self, rejected: Credential, rejection: Rejection) -> Credential | Future[Credential | None] | None:
        latest = self.latest
        return latest if latest is not rejected else None


def _or_none(run: Future[Credential]) -> Future[Credential | None]:
    """Return a future of the same run for callers that have a response to fall back on: a failure becomes None."""
    optional_run: Future[Credential | None] = Future()
    run.add_done_callback(lambda done: optional_run.set_result(None if done.exception() else done.result()))
    return optional_run


def shared_authenticator(key: Hashable, make: Callable[[], Authenticator]) -> Authenticator:
    """Return this process's authenticator for *key*, created by *make* and cached while it is referenced.

    Two clients of the same user in one process therefore share one run of the plugin.
    """
    with _table_lock:
        authenticator = _table.get(key)
        if authenticator is None:
            authenticator = _table[key] = make()
        return authenticator


_table_lock = threading.Lock()
_table: weakref.WeakValueDictionary[Hashable, Authenticator] = weakref.WeakValueDictionary()


def _after_fork() -> None:
    global _table_lock
    _table_lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
