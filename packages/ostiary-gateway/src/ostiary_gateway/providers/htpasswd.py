"""The identity provider ``htpasswd``: a password file as written by ``htpasswd -B``, or with argon2id hashes.

    identity: [{name: staff, type: htpasswd, path: users.htpasswd}]

    Basic, or the form fields username and password  ->  attempts left?  ->  hash, in a thread  ->  UserInfo

`Lockout`, checked before the hash, slows down guessing. The response and its timing are the same for a wrong password
and for an unknown username.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import os
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

import argon2
import bcrypt

from ostiary.core.clock import SYSTEM_CLOCK, Clock
from ostiary.core.watched_file import WatchedFile
from ostiary.core.yaml import ConfigSection
from ostiary.errors import ConfigurationError, LoginRefused, ProviderError
from ostiary.model import Place, Problem, Secret, UserInfo
from ostiary_gateway.catalog import Context
from ostiary_gateway.interfaces.identity import Challenge, LoginRequest, Produces, SignIn
from ostiary_gateway.interfaces.shared_counts import SharedCounts
from ostiary_gateway.providers.common.lockout import Lockout, LockoutSettings
from ostiary_gateway.providers.common.password_proof import basic_challenge, password_proof, realm_of
from ostiary_gateway.providers.htpasswd_settings import HtpasswdSettings
from ostiary_gateway.settings.declare import read_settings

MAX_FILE_BYTES = 16 * 1024 * 1024
# Each step doubles the work: a hash in the file must not keep a core busy for minutes per login.
MAX_BCRYPT_COST = 16
MAX_ARGON2_KIB = 1024 * 1024
MAX_ARGON2_PASSES = 64
MAX_ARGON2_LANES = 64
MAX_WAITING = 64

_BCRYPT = re.compile(r"\$2[aby]\$([0-9]{2})\$[./A-Za-z0-9]{53}")
_ARGON2ID = re.compile(
    r"\$argon2id\$v=19\$m=([0-9]{1,9}),t=([0-9]{1,4}),p=([0-9]{1,3})\$[A-Za-z0-9+/]{11,}\$[A-Za-z0-9+/]{16,}"
)
_WRONG = "wrong user name or password"


class _Hash(Protocol):
    """A stored password hash. `dummy` returns a hash with the same cost that matches no password."""

    def verify(self, password: bytes) -> bool: ...

    def dummy(self) -> _Hash: ...


@dataclass(frozen=True, slots=True)
class _Bcrypt:
    text: str = field(repr=False)
    cost: int

    def verify(self, password: bytes) -> bool:
        # bcrypt uses 72 bytes. So does htpasswd, which truncates longer passwords.
        return bcrypt.checkpw(password[:72], self.text.encode())

    def dummy(self) -> _Hash:
        return _Never(_Bcrypt(bcrypt.gensalt(self.cost).decode() + "." * 31, self.cost))


@dataclass(frozen=True, slots=True)
class _Argon2id:
    text: str = field(repr=False)

    def verify(self, password: bytes) -> bool:
        try:
            return argon2.PasswordHasher().verify(self.text, password)
        except argon2.exceptions.VerifyMismatchError:
            return False

    def dummy(self) -> _Hash:
        settings, _, _ = self.text.rpartition("$")
        return _Never(_Argon2id(f"{settings}${'A' * 43}"))


@dataclass(frozen=True, slots=True)
class _Never:
    """A hash that costs as much as *hash* and matches no password."""

    hash: _Hash

    def verify(self, password: bytes) -> bool:
        self.hash.verify(password)
        return False

    def dummy(self) -> _Hash:
        return self


@dataclass(frozen=True, slots=True)
class _Users:
    hashes: Mapping[str, _Hash]
    dummies: tuple[_Hash, ...]

    def hash_for(self, username: str, *, key: bytes) -> _Hash:
        """Return the user's hash. An unknown name gets a dummy: always the same one, as costly as a real hash."""
        stored_hash = self.hashes.get(username)
        digest = hmac.digest(key, username.encode("utf-8", "surrogatepass"), hashlib.sha256)
        dummy = self.dummies[int.from_bytes(digest, "big") % len(self.dummies)]
        return stored_hash or dummy


class HtpasswdIdentity:
    """Verify a username and password against the file at *path*, which is read again when it changes."""

    sign_in = SignIn.PASSWORD

    def __init__(
        self,
        *,
        path: str | os.PathLike[str],
        realm: str = "ostiary",
        lockout: LockoutSettings | None = None,
        concurrency: int | None = None,
        clock: Clock = SYSTEM_CLOCK,
        counts: SharedCounts | None = None,
        name: str = "",
    ) -> None:
        self._file = WatchedFile(path, _users, clock=clock)
        self._challenge = basic_challenge(realm)
        self._lockout = Lockout(lockout or LockoutSettings(), clock=clock, counts=counts, name=name)
        self._turn = asyncio.Semaphore(concurrency or os.cpu_count() or 1)
        self._waiting = 0
        self._key = secrets.token_bytes(32)

    @classmethod
    def from_config(cls, fields: ConfigSection, context: Context) -> HtpasswdIdentity:
        settings = read_settings(HtpasswdSettings, fields, context.directory)
        provider = cls(
            path=settings.path,
            realm=realm_of(settings.realm, context),
            lockout=settings.lockout,
            concurrency=settings.concurrency,
            clock=context.clock,
            counts=context.counts,
            name=context.name,
        )
        if fields.is_right("path"):
            provider._file.check(fields, "path")
        return provider

    def produces(self) -> Produces:
        return Produces(frozenset(self._current().hashes), uid=False)

    async def handle_client(self, request: LoginRequest) -> UserInfo | Challenge:
        proof = password_proof(request)
        if proof is None:
            return Challenge(self._challenge)
        username, password = proof
        async with self._lockout.attempt(username, request.remote_address) as attempt:
            right = await self._is_right(username, password)
            attempt.settle(right=right)
        if not right:
            raise LoginRefused(_WRONG, cause="unknown user or wrong password", www_authenticate=self._challenge)
        return UserInfo(username)

    async def handle_provider(self, request: LoginRequest) -> UserInfo:
        raise LoginRefused(
            "there is no sign-in to continue: start again", cause="a password file sends nobody elsewhere"
        )

    async def revalidate(self, user: UserInfo) -> UserInfo:
        if user.username not in self._current().hashes:
            raise LoginRefused("the user is no longer known", cause="the user is no longer in the file")
        return user

    async def _is_right(self, username: str, password: Secret) -> bool:
        stored = self._current().hash_for(username, key=self._key)
        if self._waiting >= MAX_WAITING:
            raise ProviderError("too many logins at once", cause=f"{MAX_WAITING} password checks are queued")
        self._waiting += 1
        try:
            async with self._turn:
                return await asyncio.to_thread(stored.verify, password.reveal().encode("utf-8", "surrogatepass"))
        finally:
            self._waiting -= 1

    def _current(self) -> _Users:
        try:
            return self._file.current()
        except ConfigurationError as error:
            raise ProviderError("the users cannot be read", cause=error.cause, where=error.where) from error


# --- the file ---


def _users(path: str) -> _Users:
    problems: list[Problem] = []
    hashes: dict[str, _Hash] = {}
    for number, line in enumerate(_lines(path), start=1):
        if line.strip() == "" or line.startswith("#"):
            continue
        username, _, rest = line.partition(":")
        try:
            if username == "":
                raise ValueError("a name, a colon and a hash are expected")
            if username in hashes:
                raise ValueError("duplicate user")
            hashes[username] = _hash(rest.partition(":")[0].strip())
        except ValueError as mistake:
            problems.append(Problem(str(mistake), Place(path, line=number), _HINT))
    if problems:
        raise ConfigurationError("the password file cannot be used", problems=problems)
    return _Users(hashes, tuple(stored.dummy() for stored in hashes.values()) or (_Bcrypt("", 12).dummy(),))


_HINT = "write it with: htpasswd -B -C 12 FILE NAME"


def _lines(path: str) -> list[str]:
    try:
        with open(path, "rb") as file:
            # Not splitlines, which also splits at some characters that a name may contain.
            return file.read(MAX_FILE_BYTES).decode().replace("\r\n", "\n").split("\n")
    except OSError as error:
        problem = Problem(error.strerror or "it cannot be opened", Place(path))
        raise ConfigurationError(
            "the password file cannot be read", problems=[problem], code="config-unreadable"
        ) from error
    except UnicodeDecodeError:
        problem = Problem("it is not UTF-8", Place(path))
        raise ConfigurationError("the password file cannot be used", problems=[problem]) from None


def _hash(text: str) -> _Hash:
    """Parse the hash of a line. Errors do not quote it: it may be a password in plain text."""
    if match := _BCRYPT.fullmatch(text):
        cost = int(match[1])
        if not 4 <= cost <= MAX_BCRYPT_COST:
            raise ValueError(f"the cost of the bcrypt hash is not between 4 and {MAX_BCRYPT_COST}")
        return _Bcrypt(text, cost)
    if match := _ARGON2ID.fullmatch(text):
        memory, passes, lanes = (int(number) for number in match.groups())
        if memory > MAX_ARGON2_KIB or passes > MAX_ARGON2_PASSES or not 1 <= lanes <= MAX_ARGON2_LANES or passes < 1:
            raise ValueError("the argon2id hash is too expensive")
        return _Argon2id(text)
    raise ValueError("neither a bcrypt nor an argon2id hash: any other kind is too easily guessed")
