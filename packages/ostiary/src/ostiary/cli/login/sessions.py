"""Saved sessions and cached credentials of a user, in private files with a lock.

The folder may be in a home that others can reach, on a shared machine. Only regular files of this user that no other
user may read are read. Files are private from the first byte and replaced atomically.
`ostiary.core.platform.private_files` implements that per system.
"""

from __future__ import annotations

import json
import os
import secrets
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from importlib import import_module

from ostiary.cli.cached_token import (
    DEFAULT_ACCOUNT,
    LARGEST,
    file_content,
    file_name,
    state_folder,
    tells_of_step_up,
    usable_answer,
)
from ostiary.core.clock import SYSTEM_CLOCK, Clock
from ostiary.core.platform.file_locks import file_lock
from ostiary.core.platform.open_flags import CLOSE_ON_EXEC, NO_FOLLOW
from ostiary.core.platform.private_files import private_files
from ostiary.errors import ConfigurationError
from ostiary.model import Secret
from ostiary.wire.client_authentication import V1, V1BETA1, ExecAnswer, decode_answer, encode_answer

LOOK_AGAIN_SECONDS = 0.05
_VARIABLE = "LOCALAPPDATA" if os.name == "nt" else "XDG_STATE_HOME"


def sessions_folder() -> str:
    """Return the folder where this OS user's credentials are stored."""
    # Use the current environment: `state_folder` defaults to that of the interpreter's start.
    environ = {os.fsencode(name): os.fsencode(value) for name, value in os.environ.items()}
    home = os.path.expanduser("~")
    fallback = {b"HOME": home, b"LOCALAPPDATA": os.path.join(home, "AppData", "Local")}
    path = state_folder(environ) or state_folder({name: os.fsencode(value) for name, value in fallback.items()})
    if path is None:
        raise ConfigurationError(
            "credentials cannot be stored",
            cause="this account has no home directory",
            hint=f"set {_VARIABLE} to a directory for them",
            code="session-file-unsafe",
        )
    return path


def read(path: str) -> bytes | None:
    """Return the content, or None if there is no such file. Raises `ConfigurationError` if the file is not private."""
    try:
        descriptor = private_files().open(path)
    except FileNotFoundError:
        return None
    except OSError as error:
        # A symbolic link: its creator would choose what we read.
        raise _unsafe(path, error.strerror or "it cannot be opened") from None
    with os.fdopen(descriptor, "rb") as file:
        if not private_files().is_private(descriptor, path):
            raise _unsafe(path, "it is not a regular file that you own and only you can read")
        return file.read(LARGEST)


def write(path: str, content: bytes) -> None:
    """Write *content* atomically to a private file."""
    with _reporting(path):
        _ensure_folder(os.path.dirname(path))
        new = f"{path}.{secrets.token_hex(8)}"
        try:
            with os.fdopen(private_files().create(new), "wb") as file:
                file.write(content)
                file.flush()
                # A refresh token is single-use: after a crash, the previous one must not reappear.
                os.fsync(file.fileno())
            private_files().replace(new, path)
        except BaseException:
            remove(new)
            raise


def remove(path: str) -> None:
    with suppress(FileNotFoundError):
        private_files().remove(path)


@contextmanager
def hold_lock(path: str, seconds: float) -> Iterator[bool]:
    """Hold the lock at *path*. Yields False if another process held it for all of *seconds*.

    The operating system releases the lock when the process ends, so no cleanup is needed.
    """
    with _reporting(path):
        _ensure_folder(os.path.dirname(path))
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | NO_FOLLOW | CLOSE_ON_EXEC, 0o600)
    try:
        yield _lock(descriptor, seconds)
    finally:
        os.close(descriptor)


def _lock(descriptor: int, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    lock = file_lock()
    while not lock.take(descriptor):
        if time.monotonic() >= deadline:
            return False
        time.sleep(LOOK_AGAIN_SECONDS)
    return True


def _ensure_folder(path: str) -> None:
    private_files().make_folder(path)
    if not private_files().is_own_folder(path):
        raise _unsafe(path, "it is not a directory that you own and only you can write to")


@contextmanager
def _reporting(path: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ConfigurationError(
            "credentials cannot be stored",
            cause=error.strerror,
            where=path,
            hint=f"set {_VARIABLE} to use another directory",
            code="session-file-unsafe",
        ) from None


def _unsafe(path: str, cause: str) -> ConfigurationError:
    return ConfigurationError(
        "the file that should hold a credential cannot be trusted",
        cause=cause,
        where=path,
        hint="check who created it, remove it, then sign in again: ostiary login",
        code="session-file-unsafe",
    )


# What is stored between two runs: a session that can be refreshed, and a cached credential.
#
#     <name>.token      the access token, for minutes, in the format of get-token
#     <name>.session    user, expiry, and the refresh token unless that is in the keyring
#     <name>.asked      the processes that received it: one that requests it again may have got a 401 with it
#     <name>.failed     time and reason of the last failure, so that the user is not prompted again immediately
#     <name>.lock       held by the process that refreshes or signs in
#
# Times are by the clock of this machine, even if the gateway's differs.

FILE, KEYRING = "file", "keyring"
KEYRING_SERVICE = "ostiary"
_KEYRING_TRIAL = "trial"
MARGIN = timedelta(seconds=60)
_FORMAT = 1


def renewal_margin(lifetime: timedelta) -> timedelta:
    """Return how long before its expiry a token is refreshed."""
    return min(MARGIN, lifetime / 5)


@dataclass(frozen=True, slots=True)
class GatewayAccount:
    """One account of a user at one gateway. `server` is its URL without a trailing slash."""

    server: str
    name: str = DEFAULT_ACCOUNT

    def path(self, kind: str) -> str:
        name = file_name(self.server, self.name)
        if name is None:
            raise ConfigurationError("the URL and the account name are too long", code="usage")
        return f"{sessions_folder()}/{name}.{kind}"


@dataclass(frozen=True, slots=True)
class SignInGrant:
    """The gateway's response to a sign-in or a refresh."""

    token: Secret
    expires_at: datetime
    renewal: Secret
    session: str
    session_expires_at: datetime
    user: str
    groups: tuple[str, ...] = ()
    # Whether the gateway has step-up rules.
    step_up: bool = False


@dataclass(frozen=True, slots=True)
class SavedSession:
    """What a refresh needs. `authorities_pem` are the authorities that the gateway's certificate was trusted by."""

    renewal: Secret
    expires_at: datetime
    user: str
    store: str = FILE
    authorities_pem: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class FailedSignIn:
    """The last failed sign-in. The user is not prompted again before `until`."""

    at: datetime
    until: datetime
    summary: str
    cause: str | None
    code: str


class Sessions:
    """The files of one account."""

    def __init__(self, account: GatewayAccount, *, clock: Clock = SYSTEM_CLOCK) -> None:
        self.account = account
        self._clock = clock

    # --- cached credential ---

    def ready(self) -> ExecAnswer | None:
        """Return the credential if it is still valid. Raises `ConfigurationError` if its file is not private."""
        data = read(self.account.path("token"))
        answer = None if data is None else usable_answer(data, b"v1", self._clock.now().timestamp())
        return None if answer is None else decode_answer(answer, api_version=V1)

    def has_step_up(self) -> bool:
        """Whether the gateway has step-up rules, as of the last refresh."""
        data = read(self.account.path("token"))
        return data is not None and tells_of_step_up(data)

    def save(self, grant: SignInGrant, *, store: str, authorities_pem: str | None) -> ExecAnswer:
        """Save *grant*, and return the credential to print."""
        # Save the session first: its refresh token is single-use, while another access token can always be obtained.
        self._save_session(grant, store, authorities_pem)
        answer = ExecAnswer(grant.token, None, None, grant.expires_at)
        now = self._clock.now()
        margin = renewal_margin(grant.expires_at - now)
        content = file_content(
            obtained=int(now.timestamp()),
            renew_at=int((grant.expires_at - margin).timestamp()),
            v1=encode_answer(answer, api_version=V1).encode(),
            v1beta1=encode_answer(answer, api_version=V1BETA1).encode(),
            step_up=grant.step_up,
        )
        write(self.account.path("token"), content)
        # The new credential has not been given to any process yet, and the last attempt did not fail.
        for kind in ("asked", "failed"):
            remove(self.account.path(kind))
        return answer

    # --- session ---

    def session(self) -> SavedSession | None:
        """Return the session to refresh. None if there is none, it is incomplete, or it has expired."""
        fields = _object(read(self.account.path("session")))
        if fields is None or fields.get("format") != _FORMAT:
            return None
        try:
            store = _text(fields, "store")
            session = SavedSession(
                renewal=self._from_keyring() if store == KEYRING else Secret(_text(fields, "renewal")),
                expires_at=_moment(fields, "expires_at"),
                user=_text(fields, "user"),
                store=store,
                authorities_pem=_optional_text(fields, "authorities_pem"),
            )
        except (KeyError, TypeError, ValueError, OverflowError, OSError):
            return None
        return session if session.renewal and self._clock.now() < session.expires_at else None

    def _save_session(self, grant: SignInGrant, store: str, authorities_pem: str | None) -> None:
        fields = {
            "format": _FORMAT,
            "server": self.account.server,
            "account": self.account.name,
            "user": grant.user,
            "session": grant.session,
            "expires_at": int(grant.session_expires_at.timestamp()),
            "store": store,
            "authorities_pem": authorities_pem,
        }
        if store == KEYRING:
            _ask_keyring("set_password", self._keyring_name, grant.renewal.reveal())
        else:
            fields["renewal"] = grant.renewal.reveal()
        write(self.account.path("session"), json.dumps(fields).encode())

    def _from_keyring(self) -> Secret:
        return Secret(str(_ask_keyring("get_password", self._keyring_name) or ""))

    @property
    def _keyring_name(self) -> str:
        return f"{self.account.server} {self.account.name}"

    def forget(self) -> None:
        """Remove everything except the lock, which another process may hold."""
        fields = _object(_read_or_none(self.account.path("session"))) or {}
        for kind in ("token", "session", "asked", "failed"):
            remove(self.account.path(kind))
        self._forget_jwts()
        if fields.get("store") == KEYRING:
            _ask_keyring("delete_password", self._keyring_name)

    def _forget_jwts(self) -> None:
        """Remove the JWTs for clusters that trust the gateway's JWTs: they ended with the session."""
        folder, own = sessions_folder(), f"{file_name(self.account.server, self.account.name)}+"
        with suppress(OSError):
            for name in os.listdir(folder):
                if name.startswith(own) and name.endswith((".jwt", ".asked")):
                    remove(f"{folder}/{name}")

    # --- failures ---

    def fail(self, failure: FailedSignIn) -> None:
        fields = {
            "at": failure.at.timestamp(),
            "until": failure.until.timestamp(),
            "summary": failure.summary,
            "cause": failure.cause,
            "code": failure.code,
        }
        write(self.account.path("failed"), json.dumps(fields).encode())

    def failure(self) -> FailedSignIn | None:
        fields = _object(read(self.account.path("failed")))
        if fields is None:
            return None
        try:
            return FailedSignIn(
                _moment(fields, "at"),
                _moment(fields, "until"),
                _text(fields, "summary"),
                _optional_text(fields, "cause"),
                _text(fields, "code"),
            )
        except (KeyError, TypeError, ValueError, OverflowError, OSError):
            return None


def known_accounts() -> list[GatewayAccount]:
    """Return all accounts with a session, including expired ones."""
    try:
        names = sorted(name for name in os.listdir(sessions_folder()) if name.endswith(".session"))
    except OSError:
        return []
    accounts = []
    for name in names:
        fields = _object(_read_or_none(f"{sessions_folder()}/{name}")) or {}
        server, account = fields.get("server"), fields.get("account")
        if isinstance(server, str) and isinstance(account, str):
            accounts.append(GatewayAccount(server, account))
    return accounts


def check_store(store: str) -> None:
    """Raise before the sign-in, not after it, if the keyring is unavailable or does not store anything.

    The library may be installed without a usable backend, or with a locked one: only trying it out shows that.
    """
    if store != KEYRING:
        return
    text = secrets.token_hex(8)
    _ask_keyring("set_password", _KEYRING_TRIAL, text)
    stored = _ask_keyring("get_password", _KEYRING_TRIAL)
    _ask_keyring("delete_password", _KEYRING_TRIAL)
    if stored != text:
        raise ConfigurationError(
            "the keyring cannot be used",
            cause="it did not return the stored value",
            hint="sign in with --store file",
            code="session-file-unsafe",
        )


def _keyring() -> object:
    try:
        return import_module("keyring")
    except ImportError:
        raise ConfigurationError(
            "the keyring is unavailable",
            cause="the library keyring is not installed beside ostiary",
            hint="pip install keyring, or sign in with --store file",
            code="library-missing",
        ) from None


def _ask_keyring(method: str, *arguments: str) -> object:
    try:
        return getattr(_keyring(), method)(KEYRING_SERVICE, *arguments)
    except ConfigurationError:
        raise
    except Exception as error:
        # Each backend raises its own exceptions. Their text is not quoted, because it may contain the value.
        raise ConfigurationError(
            "the keyring cannot be used",
            cause=f"{type(error).__module__}.{type(error).__qualname__}",
            hint="unlock it, or sign in with --store file",
            code="session-file-unsafe",
        ) from None


def _read_or_none(path: str) -> bytes | None:
    try:
        return read(path)
    except ConfigurationError:
        return None


def _object(data: bytes | None) -> Mapping[str, object] | None:
    try:
        document = json.loads(data or b"")
    except ValueError:
        return None
    return document if isinstance(document, dict) else None


def _text(fields: Mapping[str, object], name: str) -> str:
    value = fields[name]
    if not isinstance(value, str):
        raise TypeError
    return value


def _optional_text(fields: Mapping[str, object], name: str) -> str | None:
    return None if fields.get(name) is None else _text(fields, name)


def _moment(fields: Mapping[str, object], name: str) -> datetime:
    seconds = fields[name]
    if not isinstance(seconds, (int, float)):
        raise TypeError
    return datetime.fromtimestamp(seconds, UTC)
