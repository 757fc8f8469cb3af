"""``ostiary get-token --output-dir``: write a token to files for Kubernetes clients; ``--watch`` keeps them fresh.

Imported only with these options: a plain get-token runs before every kubectl command and must start quickly.
"""

from __future__ import annotations

import argparse
import os
import random
import select
import signal
import socket
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Self

from ostiary.cli.arguments import UsageError, expiration_seconds
from ostiary.cli.authorities import authorities
from ostiary.cli.exit_codes import FAILED, OK
from ostiary.cli.files import replace_file, token_text, unwritable
from ostiary.cli.login.gateway import ExchangedToken, GatewayClient
from ostiary.cli.login.login_lock import Turn
from ostiary.cli.login.options import chosen_account, chosen_authorities
from ostiary.cli.login.platforms.credential import exchange_proof
from ostiary.cli.login.platforms.options import chosen_platform
from ostiary.cli.login.sessions import check_store
from ostiary.cli.output import print_note
from ostiary.core.account_names import AccountName, parse_account_name
from ostiary.core.clock import SYSTEM_CLOCK, Clock
from ostiary.core.platform.private_files import private_files
from ostiary.core.scopes import parse_scope, scope_of_rules
from ostiary.core.text import fits_token_header
from ostiary.errors import ConfigurationError, LoginRefused, OstiaryError
from ostiary.model import Secret

# The fraction of the lifetime after which the token is refreshed: early enough for clients that read the file once a
# minute, and random, so that a thousand pods do not send their requests in the same second.
EARLIEST, LATEST = 0.55, 0.7
FIRST_RETRY, LONGEST_RETRY = timedelta(seconds=1), timedelta(minutes=1)
# select() does not notice that the machine was suspended, so the clock is read at least this often.
LONGEST_WAIT = timedelta(seconds=30)
DIRECTORY_MODE, TOKEN_MODE, PUBLIC_MODE = 0o700, 0o600, 0o644

Source = Callable[[], ExchangedToken]


def run(arguments: argparse.Namespace) -> int:
    if arguments.probe:
        return _probe(arguments.ready_file)
    watcher = _watcher(arguments)
    if not arguments.watch:
        watcher.refresh_once()
        return OK
    with SignalWait() as signals:
        watcher.run(signals)
    return OK


def _probe(path: str | None) -> int:
    """Whether the token is valid, for a Kubernetes probe: the image has no shell to read the file with."""
    if path is None:
        raise UsageError("--probe needs --ready-file", hint="name the file that get-token --watch writes")
    try:
        with open(path, encoding="ascii") as opened:
            expires_at = datetime.fromisoformat(opened.read(100).strip())
        valid = SYSTEM_CLOCK.now() < expires_at
    except (OSError, ValueError, TypeError) as error:
        print_note(f"not ready: {getattr(error, 'strerror', None) or 'it holds no time'}: {path}")
        return FAILED
    print_note(f"the token {'is valid until' if valid else 'expired at'} {_format_time(expires_at)}")
    return OK if valid else FAILED


@dataclass(frozen=True, slots=True)
class TokenDirectory:
    """``token``, ``ca.crt`` and ``namespace``, as in a service account volume.

    Each file is replaced atomically for concurrent readers. The token has no trailing newline, because some clients
    send the file unmodified. *ready_file* contains the time at which the token expires.
    """

    path: str
    mode: int = TOKEN_MODE
    authorities_pem: str | None = None
    namespace: str = ""
    ready_file: str | None = None
    keep_expired: bool = False

    @property
    def token_file(self) -> str:
        return os.path.join(self.path, "token")

    def prepare(self) -> None:
        """Create the directory if it does not exist, and write the files that do not change."""
        try:
            os.makedirs(self.path, DIRECTORY_MODE, exist_ok=True)
        except OSError as error:
            raise unwritable(self.path, error) from None
        if self.authorities_pem:
            replace_file(os.path.join(self.path, "ca.crt"), self.authorities_pem, PUBLIC_MODE)
        if self.namespace:
            replace_file(os.path.join(self.path, "namespace"), self.namespace, PUBLIC_MODE)

    def write(self, token: Secret) -> None:
        replace_file(self.token_file, token.reveal(), self.mode)

    def write_ready_file(self, expires_at: datetime) -> None:
        if self.ready_file is not None:
            replace_file(self.ready_file, f"{expires_at.isoformat(timespec='seconds')}\n", PUBLIC_MODE)

    def remove_expired(self) -> None:
        self.remove_ready_file()
        if not self.keep_expired:
            _remove(self.token_file)

    def remove_ready_file(self) -> None:
        if self.ready_file is not None:
            _remove(self.ready_file)


class TokenWatcher:
    """Refresh the token of a directory ahead of its expiry, and remove it if it expires first."""

    def __init__(
        self,
        source: Source,
        directory: TokenDirectory,
        *,
        clock: Clock = SYSTEM_CLOCK,
        notify: Callable[[str], None] = print_note,
        uniform: Callable[[float, float], float] = random.uniform,
    ) -> None:
        self._source = source
        self._directory = directory
        self._clock = clock
        self._notify = notify
        self._uniform = uniform
        # None while there is no valid token.
        self.expires_at: datetime | None = None
        self._failures = 0
        self._last_failure = ""

    def run(self, signals: SignalWait) -> None:
        """Run until SIGTERM or SIGINT. SIGHUP refreshes immediately."""
        try:
            refresh_at = self._clock.now()
            while not signals.terminated:
                if self._clock.now() >= refresh_at:
                    refresh_at = self.refresh()
                self.remove_if_expired()
                wake_at = min(refresh_at, self.expires_at or refresh_at)
                if signals.wait(min(wake_at - self._clock.now(), LONGEST_WAIT)):
                    refresh_at = self._clock.now()
        finally:
            self._directory.remove_ready_file()

    def refresh(self) -> datetime:
        """Try once to get a new token. Returns the time of the next attempt."""
        try:
            expires_at = self.refresh_once()
        except OstiaryError as error:
            return self._clock.now() + self._record_failure(error)
        now = self._clock.now()
        return now + max((expires_at - now) * self._uniform(EARLIEST, LATEST), FIRST_RETRY)

    def refresh_once(self) -> datetime:
        """Get a new token, write it and return its expiry. Raises errors of the source and of writing."""
        issued = self._source()
        self._directory.write(issued.token)
        self.expires_at = issued.expires_at
        self._directory.write_ready_file(issued.expires_at)
        recovered, self._failures, self._last_failure = self._failures > 0, 0, ""
        if recovered:
            self._notify(f"the token was refreshed; it is valid until {_format_time(issued.expires_at)}")
        return issued.expires_at

    def remove_if_expired(self) -> None:
        if self.expires_at is not None and self.expires_at <= self._clock.now():
            self._notify(f"the token expired at {_format_time(self.expires_at)}; clients have none until the next one")
            self.expires_at = None
            self._directory.remove_expired()

    def _record_failure(self, error: OstiaryError) -> timedelta:
        self._failures += 1
        failure = f"{error.summary}: {error.cause}" if error.cause else error.summary
        # An outage may last for hours: report the same failure once.
        if failure != self._last_failure:
            self._last_failure = failure
            outcome = "was denied" if isinstance(error, LoginRefused) else "failed"
            expires_at = self.expires_at
            rest = "there is no token" if expires_at is None else f"the token is valid until {_format_time(expires_at)}"
            self._notify(f"the token refresh {outcome}: {failure}; {rest}; retrying")
        return min(FIRST_RETRY * (1 << min(self._failures - 1, 10)), LONGEST_RETRY) * self._uniform(0.5, 1)


class SignalWait:
    """A wait that SIGTERM, SIGINT and SIGHUP interrupt. Only for the main thread.

    Not a `threading.Event`: a handler that runs while `wait` holds the event's lock would deadlock in `set`. Here the
    handlers only set a flag. Python writes a byte to the socket before it runs them, which also ends a wait that begins
    just after the signal.
    """

    def __enter__(self) -> Self:
        self.terminated = False
        self._reader, self._writer = socket.socketpair()
        for each in (self._reader, self._writer):
            each.setblocking(False)
        handlers = {signal.SIGTERM: self._terminate, signal.SIGINT: self._terminate}
        if hasattr(signal, "SIGHUP"):  # Windows does not have it.
            handlers[signal.SIGHUP] = _ignore
        self._descriptor = signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)
        self._handlers = {number: signal.signal(number, handler) for number, handler in handlers.items()}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._descriptor)
        self._reader.close()
        self._writer.close()

    def wait(self, timeout: timedelta) -> bool:
        """Whether there was a signal since the last wait, or within *timeout*."""
        select.select([self._reader], [], [], max(timeout.total_seconds(), 0))
        with suppress(BlockingIOError):
            return bool(self._reader.recv(4096))
        return False

    def _terminate(self, *_: object) -> None:
        self.terminated = True


def _ignore(*_: object) -> None:
    """Do nothing. The byte that Python writes for the signal ends the wait."""


# --- command line ---


def _watcher(arguments: argparse.Namespace) -> TokenWatcher:
    for name in ("jwt_for", "provider", "device", "no_browser", "verbose"):
        if getattr(arguments, name):
            option = f"--{name.replace('_', '-')}"
            raise UsageError(f"--output-dir and {option} cannot be combined", hint="leave one of them out")
    account = None if arguments.service_account is None else _account_name(arguments.service_account)
    proof_file = arguments.gateway_token_file
    if account is not None:
        source, gateway = _account_source(arguments, account)
    else:
        for option, value in (("--for", arguments.lifetime), ("--gateway-token-file", proof_file)):
            if value is not None:
                raise UsageError(f"{option} needs --service-account", hint="--service-account shop/deployer")
        source, gateway = _user_source(arguments)
    directory = TokenDirectory(
        arguments.output_dir,
        TOKEN_MODE if arguments.mode is None else arguments.mode,
        gateway.authorities_pem,
        arguments.namespace or ("" if account is None else account.namespace),
        arguments.ready_file,
    )
    if proof_file is not None and os.path.realpath(proof_file) == os.path.realpath(directory.token_file):
        directory = replace(directory, keep_expired=True)
    directory.prepare()
    return TokenWatcher(source, directory)


def _user_source(arguments: argparse.Namespace, *, always_new: bool = True) -> tuple[Source, GatewayClient]:
    """Return a source for the token of this job or pod (``--from``), or of the ``ostiary login`` session. Never
    prompts.

    With *always_new* the session is refreshed even if the token of the last call has not expired yet.
    """
    choice = chosen_platform(arguments)
    if choice is not None:
        gateway = GatewayClient(choice.server, authorities_pem=authorities(arguments.ca))

        def exchange() -> ExchangedToken:
            granted = exchange_proof(choice, authorities_pem=gateway.authorities_pem)
            return ExchangedToken(granted.token, granted.expires_at)

        return exchange, gateway
    if arguments.store is not None:
        check_store(arguments.store)
    account = chosen_account(arguments)
    turn = Turn(account, store=arguments.store, authorities_pem=chosen_authorities(arguments, account))

    last_expiry: datetime | None = None

    def refresh() -> ExchangedToken:
        nonlocal last_expiry
        # The cache would return the same token until a minute before it expires.
        lasting = last_expiry - SYSTEM_CLOCK.now() + timedelta(seconds=1) if always_new and last_expiry else None
        answer = turn.credential(lasting=lasting)
        assert answer.token is not None
        assert answer.expires_at is not None
        last_expiry = answer.expires_at
        return ExchangedToken(answer.token, answer.expires_at)

    return refresh, turn.gateway()


def _account_source(arguments: argparse.Namespace, account: AccountName) -> tuple[Source, GatewayClient]:
    """Return a source for a service account's token, requested with the user's token or ``--gateway-token-file``."""
    path = arguments.gateway_token_file
    if path is not None and arguments.platform is not None:
        raise UsageError("--from and --gateway-token-file cannot be combined", hint="leave one of them out")
    seconds, scope = expiration_seconds(arguments), _scope(arguments)
    # Only the account's token is limited to the scope: the user's must be able to create it.
    arguments.can = arguments.scope = None
    user_source, gateway = _user_source(arguments, always_new=False)

    def request() -> ExchangedToken:
        token = user_source().token if path is None else _token_in(path)
        return gateway.service_account_token(token, account, seconds=seconds, scope=scope)

    return request, gateway


def _token_in(path: str) -> Secret:
    """Read a token of the gateway. Called for every request, because another process may replace the file."""
    token = token_text(path).strip()
    if not fits_token_header(token):
        raise ConfigurationError(
            "the file holds no token",
            cause="it is not one line of visible ASCII",
            where=path,
            hint="write a token of the gateway into it",
            code="token-file-unreadable",
        )
    return Secret(token)


def _account_name(text: str) -> AccountName:
    try:
        return parse_account_name(text)
    except ValueError as error:
        raise UsageError(str(error), hint="as in: --service-account shop/deployer") from None


def _scope(arguments: argparse.Namespace) -> str:
    if arguments.can and arguments.scope:
        raise UsageError("--can and --scope cannot be combined", hint="leave one of them out")
    if arguments.scope:
        return str(parse_scope(arguments.scope))
    return str(scope_of_rules(arguments.can)) if arguments.can else ""


def _remove(path: str) -> None:
    try:
        private_files().remove(path)
    except FileNotFoundError:
        return
    except OSError as error:
        print_note(f"cannot remove {path}: {error.strerror}")


def _format_time(moment: datetime) -> str:
    return moment.astimezone().strftime("%Y-%m-%d %H:%M:%S")
