"""One refresh and one sign-in at a time, for concurrent processes of the same user.

    cached? -> use it
      no    -> wait for the lock -> cached now? use it -> failed in the meantime? fail too
                                 -> refresh -> sign in, if a user may be prompted and did not just ignore it -> save

Twenty concurrent kubectl processes open one browser tab. If the user does not respond, clients that retry every few
seconds get that error instead of further tabs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from ostiary.cli.login import sessions as files
from ostiary.cli.login.gateway import GatewayClient, RenewedElsewhere
from ostiary.cli.login.sessions import (
    FILE,
    FailedSignIn,
    GatewayAccount,
    SavedSession,
    Sessions,
    SignInGrant,
    check_store,
)
from ostiary.cli.login.terminal import Person, Wishes
from ostiary.core.clock import SYSTEM_CLOCK, Clock
from ostiary.core.platform.signals import block_signals
from ostiary.errors import CODES, ConfigurationError, CredentialError, OstiaryError
from ostiary.model import Secret
from ostiary.wire.client_authentication import ExecAnswer

LEFT_ALONE = timedelta(minutes=5)
# For callers without a user: most clients give up on a plugin after a minute.
WAIT_SECONDS = 50.0
# Attempts are about a second apart, and the gateway tolerates reuse of a refresh token for ten seconds.
RENEWALS = 4


@dataclass(frozen=True, slots=True)
class Turn:
    """How one process obtains its credential. Without *person*, the user is not prompted."""

    account: GatewayAccount
    wishes: Wishes = field(default_factory=Wishes)
    person: Person | None = None
    store: str | None = None
    authorities_pem: str | None = None
    clock: Clock = SYSTEM_CLOCK

    def credential(self, *, doubted: bool = False, lasting: timedelta | None = None) -> ExecAnswer:
        """Return a credential that is valid for a while. Raises an `OstiaryError` with the reason if there is none.

        With *doubted*, query the gateway whether the cached one is still valid. With *lasting*, refresh a token with a
        shorter remaining lifetime; no token lives longer than a new one.
        """
        sessions = Sessions(self.account, clock=self.clock)
        start = self.clock.now()
        cached = sessions.ready()
        if cached is None:
            return self._obtain(sessions, start)
        if lasting is not None and cached.expires_at is not None and cached.expires_at - start < lasting:
            return self._obtain(sessions, start, rejected=cached)
        if not doubted or not self._is_rejected(sessions, cached):
            return cached
        replacement = self._obtain(sessions, start, rejected=cached)
        if self.person is not None:
            # kubectl already has the 401 and will print it.
            self.person.tell("you are signed in again; run commands that failed in the meantime again")
        return replacement

    def _obtain(self, sessions: Sessions, began: datetime, rejected: ExecAnswer | None = None) -> ExecAnswer:
        with self._hold_lock() as ours:
            cached = sessions.ready()
            if cached is not None and cached != rejected:
                return cached
            if not ours:
                raise self._sign_in_needed("another process is still waiting for the sign-in")
            return self._renew(sessions) or self._sign_in_unless_refused(sessions, began)

    def gateway(self) -> GatewayClient:
        """Return a client for the gateway, with the authorities of the saved session."""
        return self._gateway(self._authorities(_session_before(Sessions(self.account, clock=self.clock))))

    def sign_in(self) -> ExecAnswer:
        """Start a new session, even if there is one: the user requested it."""
        assert self.person is not None
        sessions = Sessions(self.account, clock=self.clock)
        with self._hold_lock() as ours:
            if not ours:
                raise self._sign_in_needed("another process is still waiting for the sign-in")
            return self._ask_person(sessions)

    @contextmanager
    def _hold_lock(self) -> Iterator[bool]:
        # The process that holds it may wait for the user as long as this one would.
        seconds = self.wishes.seconds if self.person is not None else min(self.wishes.seconds, WAIT_SECONDS)
        with files.hold_lock(self.account.path("lock"), seconds) as ours:
            yield ours

    # --- without a user ---

    def _is_rejected(self, sessions: Sessions, answer: ExecAnswer) -> bool:
        assert answer.token is not None
        authorities_pem = self._authorities(_session_before(sessions))
        try:
            self._gateway(authorities_pem).whoami(answer.token)
        except CredentialError:
            return True
        except OstiaryError:
            # The gateway is unreachable, so use the cached credential.
            return False
        return False

    def _authorities(self, session: SavedSession | None) -> str | None:
        return self.authorities_pem or (session.authorities_pem if session is not None else None)

    def _gateway(self, authorities_pem: str | None) -> GatewayClient:
        return GatewayClient(self.account.server, authorities_pem=authorities_pem, clock=self.clock)

    def _renew(self, sessions: Sessions) -> ExecAnswer | None:
        before = sessions.ready()
        for _ in range(RENEWALS):
            session = sessions.session()
            if session is None:
                return None
            try:
                renewed = self._renew_with(session, sessions)
                if renewed is None:
                    break
            except RenewedElsewhere as elsewhere:
                # Either another machine with the same home has refreshed it, where our lock does not apply, and its
                # result will be in our file. Or an earlier run of ours never received the response, which the gateway
                # may repeat.
                time.sleep(elsewhere.seconds)
                renewed = sessions.ready()
            if renewed is not None and renewed != before:
                return renewed
        sessions.forget()
        return None

    def _renew_with(self, session: SavedSession, sessions: Sessions) -> ExecAnswer | None:
        authorities_pem = self._authorities(session)
        gateway = self._gateway(authorities_pem)
        # Between the gateway's response and our file, the new refresh token exists nowhere else: delay Ctrl-C.
        with block_signals():
            grant = gateway.renew(session.renewal)
            return None if grant is None else sessions.save(grant, store=session.store, authorities_pem=authorities_pem)

    # --- with a user ---

    def _sign_in_unless_refused(self, sessions: Sessions, began: datetime) -> ExecAnswer:
        failure = sessions.failure()
        if failure is not None and (failure.at >= began or self.clock.now() < failure.until):
            raise self._failed_before(failure)
        answer = self._sign_in_unattended(sessions) if self.person is None else self._ask_person(sessions)
        if answer is None:
            raise self._sign_in_needed("you are not signed in, and this client does not allow interactive sign-in")
        return answer

    def _ask_person(self, sessions: Sessions) -> ExecAnswer:
        assert self.person is not None
        # Lazy import: a refresh needs neither browser nor terminal, and the user waits for it.
        from ostiary.cli.login.login_methods import sign_in

        person = self.person
        answer = self._begin_session(sessions, lambda gateway: sign_in(gateway, self.account, person, self.wishes))
        assert answer is not None
        return answer

    def _sign_in_unattended(self, sessions: Sessions) -> ExecAnswer | None:
        """Sign in with what is available on this machine. None if the user would have to be prompted."""
        from ostiary.cli.login.login_methods import sign_in_unattended

        return self._begin_session(sessions, lambda gateway: sign_in_unattended(gateway, self.wishes))

    def _begin_session(
        self, sessions: Sessions, sign_in: Callable[[GatewayClient], SignInGrant | None]
    ) -> ExecAnswer | None:
        before = _session_before(sessions)
        authorities_pem = self._authorities(before)
        gateway = self._gateway(authorities_pem)
        store = self.store or (before.store if before is not None else FILE)
        check_store(store)
        try:
            grant = sign_in(gateway)
        except OstiaryError as error:
            self._note(sessions, error.summary, error.cause, error.code, self._rest(error))
            raise
        except KeyboardInterrupt:
            # Record it, so that the waiting processes do not open one tab each.
            self._note(sessions, "sign-in timed out", "interrupted", "sign-in-unanswered", timedelta(0))
            raise
        if grant is None:
            return None
        try:
            return sessions.save(grant, store=store, authorities_pem=authorities_pem)
        except ConfigurationError:
            # End the session at the gateway, because it can neither be used nor ended from here.
            with suppress(OstiaryError):
                gateway.logout(grant.renewal, everywhere=False)
            raise

    def _rest(self, error: OstiaryError) -> timedelta:
        return LEFT_ALONE if error.code in ("sign-in-unanswered", "sign-in-refused") else timedelta(0)

    def _note(self, sessions: Sessions, summary: str, cause: str | None, code: str, rest: timedelta) -> None:
        now = self.clock.now()
        sessions.fail(FailedSignIn(now, now + rest, summary, cause, code))

    # --- errors ---

    def _failed_before(self, failure: FailedSignIn) -> CredentialError:
        at = failure.at.astimezone().strftime("%H:%M:%S")
        return CredentialError(
            failure.summary,
            cause=f"{failure.cause or 'it failed'}, at {at}; not retried for a while",
            where=self.account.server,
            hint=self._login_hint(),
            code=failure.code if failure.code in CODES else "sign-in-unanswered",
        )

    def _sign_in_needed(self, cause: str) -> CredentialError:
        return CredentialError(
            "sign in first", cause=cause, where=self.account.server, hint=self._login_hint(), code="sign-in-needed"
        )

    def _login_hint(self) -> str:
        return " ".join(login_command(self.account))


def session_token(
    account: GatewayAccount, authorities_pem: str | None, *, lasting: timedelta | None = None
) -> tuple[Secret, str | None]:
    """Return the token of the `ostiary login` session and its gateway's authorities. Never prompts."""
    answer = Turn(account, authorities_pem=authorities_pem).credential(lasting=lasting)
    assert answer.token is not None
    session = _session_before(Sessions(account))
    return answer.token, authorities_pem or (None if session is None else session.authorities_pem)


def login_command(account: GatewayAccount) -> list[str]:
    words = ["ostiary", "login", "--server", account.server]
    return words if account == GatewayAccount(account.server) else [*words, "--account", account.name]


def _session_before(sessions: Sessions) -> SavedSession | None:
    try:
        return sessions.session()
    except ConfigurationError:
        # Its file is not private, or the keyring is gone: signing in again fixes that.
        return None
