"""Writes down what replicas have acknowledged under load, and checks that they stand by it.

    with Ledger(replicas, max_stale=5.0) as ledger:
        ... kill what you like ...
        ledger.progress()            # wait until sign-ins and revocations succeed again
    ledger.check()

One thread signs people in, one revokes sessions, and one for each replica presents tokens to it. What is not
acknowledged proves nothing: the client asks again, as a person would.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType

import httpx

from tests.support.gateway import Gateway, password
from tests.support.replicas import RECOVERY_SECONDS, REVOCATIONS, Replicas
from tests.support.waiting import until


@dataclass
class Entry:
    """A session that was acknowledged. `revoked_at` is when its revocation was."""

    token: str = field(repr=False)
    session: str
    # From when on its end may have been written, acknowledged or not: the client cannot know.
    doubtful: bool = False
    revoked_at: float | None = None


class Ledger:
    def __init__(self, replicas: Replicas, path: str, *, user: str, admin: str, max_stale: float) -> None:
        self._replicas, self._path, self._user, self._admin = replicas, path, user, admin
        self._max_stale = max_stale
        self.entries: list[Entry] = []
        self.violations: list[str] = []
        self.revocations = 0
        # From the acknowledgement of a revocation to the last answer that still accepted the token.
        self.longest_lag = 0.0
        self.checks = 0
        self._over = threading.Event()

    def __enter__(self) -> Ledger:
        work: list[Callable[[], None]] = [self._sign_in_all_the_time, self._revoke_all_the_time]
        work += [lambda replica=replica: self._present_all_the_time(replica) for replica in self._replicas]  # type: ignore[misc]
        self._threads = [threading.Thread(target=each) for each in work]
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join(RECOVERY_SECONDS)
            assert not thread.is_alive()

    def progress(self) -> None:
        """Wait until somebody has signed in, and somebody's session was revoked, from now on."""
        signed_in, revoked = len(self.entries), self.revocations
        until(lambda: len(self.entries) > signed_in and self.revocations > revoked, seconds=RECOVERY_SECONDS)

    def check(self) -> None:
        """At the end, each replica says of each token what it must."""
        for replica in self._replicas:
            with replica.http() as http:
                for entry in self.entries:
                    if not entry.doubtful or entry.revoked_at is not None:
                        self._settle(http, entry)
        assert not self.violations, self.violations[:5]

    def summary(self) -> str:
        return (
            f"{len(self.entries)} sign-ins, {self.revocations} revocations, {self.checks} answers judged,"
            f" a revoked token accepted for {self.longest_lag * 1000:.0f} ms at most"
        )

    def _settle(self, http: httpx.Client, entry: Entry) -> None:
        status = _status(http, self._path, entry.token)
        right = 200 if entry.revoked_at is None else 401
        must_hold_at = 0.0 if entry.revoked_at is None else entry.revoked_at + self._max_stale

        def is_settled() -> bool:
            asked_at, code = time.monotonic(), status()
            # What was revoked a moment before the end may still be on its way to this replica.
            is_wrong = code not in (right, 503, CUT) and asked_at > must_hold_at
            if is_wrong:
                self.violations.append(f"in the end {code} for {entry}")
            return is_wrong or code == right

        until(is_settled, f"{right} for {entry}", seconds=RECOVERY_SECONDS)

    # --- what goes on meanwhile ---

    def _sign_in_all_the_time(self) -> None:
        while not self._over.wait(0.02):
            if said := self._sign_in(self._user):
                self.entries.append(Entry(said["token"], said["session"]))

    def _sign_in(self, user: str) -> dict[str, str]:
        """What the gateway says to who signs in; nothing if it was not acknowledged."""
        try:
            with self._replicas.front.http(timeout=5.0) as http:
                answer = http.get("/auth", auth=(user, password(user)))
        except httpx.TransportError:
            return {}
        return answer.json() if answer.status_code == 200 else {}

    def _revoke_all_the_time(self) -> None:
        admin = ""
        while not admin and not self._over.wait(0.02):
            admin = self._sign_in(self._admin).get("token", "")
        while not self._over.wait(0.05):
            living = [entry for entry in self.entries if not entry.doubtful]
            if len(living) < 10:
                continue
            entry = random.choice(living)
            entry.doubtful = True
            while not self._revoke(admin, entry) and not self._over.wait(0.02):
                pass

    def _revoke(self, admin: str, entry: Entry) -> bool:
        try:
            with self._replicas.front.http(admin, timeout=5.0) as http:
                answer = http.post(REVOCATIONS, json={"type": "session", "value": entry.session})
        except httpx.TransportError:
            return False
        if answer.status_code != 201:
            return False
        entry.revoked_at = time.monotonic()
        self.revocations += 1
        return True

    def _present_all_the_time(self, replica: Gateway) -> None:
        while not self._over.wait(0.01):
            entries = self.entries[-200:]
            if not entries:
                continue
            entry = random.choice(entries)
            asked_at, revoked_at, doubtful = time.monotonic(), entry.revoked_at, entry.doubtful
            try:
                with replica.http(entry.token, timeout=5.0) as http:
                    status = http.get(self._path).status_code
            except httpx.TransportError:
                continue
            self._judge(entry, status, asked_at, revoked_at, doubtful)

    def _judge(self, entry: Entry, status: int, asked_at: float, revoked_at: float | None, doubtful: bool) -> None:
        self.checks += 1
        if status == 200 and revoked_at is not None:
            lag = asked_at - revoked_at
            self.longest_lag = max(self.longest_lag, lag)
            if lag > self._max_stale:
                self.violations.append(f"accepted {lag:.1f} s after its revocation: {entry}")
        # Asked before anybody thought of revoking it.
        if status == 401 and not doubtful and not entry.doubtful:
            self.violations.append(f"an acknowledged session is gone: {entry}")


# A request that is open when its session is revoked is cut, and gets no answer.
CUT = 0


def _status(http: httpx.Client, path: str, token: str) -> Callable[[], int]:
    def status() -> int:
        try:
            return http.get(path, headers={"Authorization": f"Bearer {token}"}).status_code
        except httpx.RemoteProtocolError:
            return CUT

    return status
