"""One renewal and one sign-in, for any number of processes that want a credential at the same moment.

    ready? -> take it
      no   -> wait for the lock -> ready by now? take it -> failed meanwhile? fail too
                                -> renew -> sign in, if a person may be asked and did not just ignore us -> keep it

Called by get-token, login, whoami, and the commands that ask a gateway as whoever signed in there. Twenty kubectls
that start in the morning open one tab; when nobody comes, the tools that ask every few seconds are told so, and open no
further ones.
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
# For those who cannot be asked: most programs give up on a plugin after a minute.
WAIT_SECONDS = 50.0
# A second or so lies between two of them, and the gateway bears with a renewal token that was used before for ten.
RENEWALS = 4


@dataclass(frozen=True, slots=True)
class Turn:
    """How one process wants its credential. Without a *person* nobody is asked."""

    account: GatewayAccount
    wishes: Wishes = field(default_factory=Wishes)
    person: Person | None = None
    store: str | None = None
    authorities_pem: str | None = None
    clock: Clock = SYSTEM_CLOCK

    def credential(self, *, doubted: bool = False, lasting: timedelta | None = None) -> ExecAnswer:
        """One that is good for a while. Raises an `OstiaryError` that says why there is none.

        With *doubted* the gateway is asked whether it still knows the one that lies ready. With *lasting*, one that
        is not good for so long any more is renewed first; no token is good for longer than a new one.
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
            # kubectl has the refusal in its hands already, and will print it.
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
        """The gateway, trusted as the session that is kept was trusted."""
        return self._gateway(self._authorities(_session_before(Sessions(self.account, clock=self.clock))))

    def sign_in(self) -> ExecAnswer:
        """A new session, whatever there is: this is what the person asked for."""
        assert self.person is not None
        sessions = Sessions(self.account, clock=self.clock)
        with self._hold_lock() as ours:
            if not ours:
                raise self._sign_in_needed("another process is still waiting for the sign-in")
            return self._ask_person(sessions)

    @contextmanager
    def _hold_lock(self) -> Iterator[bool]:
        # Whoever holds it may be waiting for the person as long as we would.
        seconds = self.wishes.seconds if self.person is not None else min(self.wishes.seconds, WAIT_SECONDS)
        with files.hold_lock(self.account.path("lock"), seconds) as ours:
            yield ours

    # --- without a person ---

    def _is_rejected(self, sessions: Sessions, answer: ExecAnswer) -> bool:
        assert answer.token is not None
        authorities_pem = self._authorities(_session_before(sessions))
        try:
            self._gateway(authorities_pem).whoami(answer.token)
        except CredentialError:
            return True
        except OstiaryError:
            # Nobody can say; what lies ready is the best there is.
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
                # By a machine with the same home, where our lock does not hold, and then its answer will lie here; or
                # by a run of ours that never got the answer, which the gateway may give once more.
                time.sleep(elsewhere.seconds)
                renewed = sessions.ready()
            if renewed is not None and renewed != before:
                return renewed
        sessions.forget()
        return None

    def _renew_with(self, session: SavedSession, sessions: Sessions) -> ExecAnswer | None:
        authorities_pem = self._authorities(session)
        gateway = self._gateway(authorities_pem)
        # Between the gateway's answer and our file a renewal token exists nowhere else: Ctrl-C waits for that.
        with block_signals():
            grant = gateway.renew(session.renewal)
            return None if grant is None else sessions.save(grant, store=session.store, authorities_pem=authorities_pem)

    # --- with a person ---

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
        # Imported here: a renewal needs neither browser nor terminal, and somebody waits for it.
        from ostiary.cli.login.login_methods import sign_in

        person = self.person
        answer = self._begin_session(sessions, lambda gateway: sign_in(gateway, self.account, person, self.wishes))
        assert answer is not None
        return answer

    def _sign_in_unattended(self, sessions: Sessions) -> ExecAnswer | None:
        """By what the person has on this machine anyway; None if they would have to be asked."""
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
            # The others that wait for this one are not to open one tab each.
            self._note(sessions, "sign-in timed out", "interrupted", "sign-in-unanswered", timedelta(0))
            raise
        if grant is None:
            return None
        try:
            return sessions.save(grant, store=store, authorities_pem=authorities_pem)
        except ConfigurationError:
            # A session that nobody can use, or sign out of, must not live on at the gateway.
            with suppress(OstiaryError):
                gateway.logout(grant.renewal, everywhere=False)
            raise

    def _rest(self, error: OstiaryError) -> timedelta:
        return LEFT_ALONE if error.code in ("sign-in-unanswered", "sign-in-refused") else timedelta(0)

    def _note(self, sessions: Sessions, summary: str, cause: str | None, code: str, rest: timedelta) -> None:
        now = self.clock.now()
        sessions.fail(FailedSignIn(now, now + rest, summary, cause, code))

    # --- what is told ---

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
    """The token of the session that `ostiary login` keeps, and whom its gateway is trusted by. Nobody is asked."""
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
        # Its file cannot be trusted, or the keyring is gone; signing in is what mends that.
        return None
