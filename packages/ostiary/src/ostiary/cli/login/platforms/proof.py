"""What a platform says of a job or pod, and the checks before it leaves this machine.

Every module of a platform makes a `PlatformProof`; `find` checks it with `check_proof`. The token is somebody else's,
so it is read without verifying it: that is the gateway's business. But one that is not for the gateway is never sent to
it, since whoever gets it could present it where it is good.
"""

from __future__ import annotations

import binascii
import json
import os
from base64 import urlsafe_b64decode
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime

from ostiary.cli.cached_workload_token import AUTO, Options, platform_of
from ostiary.core.clock import SYSTEM_CLOCK, Clock
from ostiary.core.scopes import parse_scope, scope_of_rules
from ostiary.core.text import fits_token_header, printable
from ostiary.errors import CredentialError
from ostiary.model import Secret

LARGEST_TOKEN = 64 * 1024
CODE = "platform-proof-unavailable"


@dataclass(frozen=True, slots=True)
class PlatformChoice:
    """Which proof is wanted. `audience` is what the gateway expects; a file or variable only where one was named.

    `can` are the rules of a token that can do less, for clients that discover the API; `scope` is sent as it is.
    """

    server: str
    platform: str = AUTO
    audience: str = ""
    token_file: str | None = None
    token_variable: str | None = None
    can: tuple[str, ...] = ()
    scope: str = ""
    authority: str | None = None
    """The file of ``--ca``: a cached token belongs to what the command line said."""

    @property
    def wanted_audience(self) -> str:
        return self.audience or self.server

    @property
    def wanted_scope(self) -> str:
        """The ``scope`` of the exchange, empty for all that the job may do; raises `ScopeError`."""
        if self.scope:
            return str(parse_scope(self.scope))
        return str(scope_of_rules(self.can)) if self.can else ""

    def as_options(self) -> Options:
        """As `cached_workload_token` reads the same from a command line."""
        options = {
            "--from": self.platform,
            "--server": self.server,
            "--audience": self.audience,
            "--token-file": self.token_file,
            "--token-variable": self.token_variable,
            "--can": "\n".join(self.can),
            "--scope": self.scope,
            "--ca": self.authority,
        }
        return {option: value for option, value in options.items() if value}

    def platform_here(self) -> str | None:
        """The platform that is meant on this machine; None if ``auto`` finds none."""
        return platform_of(self.as_options(), dict(os.environb))


@dataclass(frozen=True, slots=True)
class PlatformProof:
    """A token that the platform signed. `where` says where it came from, and is no secret."""

    platform: str
    token: Secret
    where: str
    claims: Mapping[str, object] = field(default_factory=dict, repr=False, compare=False)

    @property
    def subject(self) -> str:
        return str(self.claims.get("sub", ""))


def check_proof(proof: PlatformProof, audience: str, *, hint: str, clock: Clock = SYSTEM_CLOCK) -> PlatformProof:
    """*proof* with its claims, if it can be sent to whoever calls itself *audience*; raises `CredentialError`."""
    text = proof.token.reveal()
    claims = unverified_claims(text)
    if claims is None:
        raise no_proof("what is there is not a JWT", proof.where, hint)
    audiences = _audiences(claims.get("aud"))
    if audience not in audiences:
        names = ", ".join(printable(each) for each in audiences) or "no audience"
        raise no_proof(f"the token is for {names}, and not for {printable(audience)}", proof.where, hint)
    expires_at = _moment(claims.get("exp"))
    if expires_at is not None and expires_at <= clock.now():
        cause = f"the token has expired, at {expires_at.astimezone():%H:%M:%S}"
        raise no_proof(cause, proof.where, "check the clock of this machine, and what should renew the token")
    return PlatformProof(proof.platform, proof.token, proof.where, claims)


def unverified_claims(token: str) -> Mapping[str, object] | None:
    """What a JWT says of itself, with nothing verified; None if it is none."""
    parts = token.split(".")
    if len(parts) != 3 or not all(parts) or not fits_token_header(token):
        return None
    try:
        claims = json.loads(urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
    except (ValueError, RecursionError, binascii.Error):
        return None
    return claims if isinstance(claims, dict) else None


def token_from_file(path: str) -> str:
    """The token that *path* holds; raises `OSError`, or `ValueError` if it is no text or far too long."""
    with open(path, "rb") as file:
        content = file.read(LARGEST_TOKEN + 1)
    if len(content) > LARGEST_TOKEN:
        raise ValueError("too long")
    return content.decode("ascii").strip()


def no_proof(cause: str, where: str, hint: str) -> CredentialError:
    return CredentialError("no platform token for this job or pod", cause=cause, where=where, hint=hint, code=CODE)


def _audiences(claim: object) -> tuple[str, ...]:
    if isinstance(claim, str):
        return (claim,)
    return tuple(each for each in claim if isinstance(each, str)) if isinstance(claim, list) else ()


def _moment(claim: object) -> datetime | None:
    if isinstance(claim, bool) or not isinstance(claim, (int, float)) or not 0 <= claim < 10**11:
        return None
    return datetime.fromtimestamp(claim, UTC)
