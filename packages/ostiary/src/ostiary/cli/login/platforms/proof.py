"""The identity token of a job or pod, and its validation before it is sent.

The gateway verifies the token; here its claims are read unverified. A token for another audience is never sent to the
gateway, because the receiver could present it to that audience.
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
    """The requested proof. `audience` is what the gateway expects; file and variable are set only if they were named.

    `can` are the rules of a scoped token, for clients that discover the API; `scope` is sent unchanged.
    """

    server: str
    platform: str = AUTO
    audience: str = ""
    token_file: str | None = None
    token_variable: str | None = None
    can: tuple[str, ...] = ()
    scope: str = ""
    authority: str | None = None
    """The file of ``--ca``. Part of the key of cached tokens."""

    @property
    def wanted_audience(self) -> str:
        return self.audience or self.server

    @property
    def wanted_scope(self) -> str:
        """The ``scope`` of the exchange, empty for an unrestricted token. Raises `ScopeError`."""
        if self.scope:
            return str(parse_scope(self.scope))
        return str(scope_of_rules(self.can)) if self.can else ""

    def as_options(self) -> Options:
        """Return the choice in the form that `cached_workload_token` parses from a command line."""
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
        """Return the platform on this machine, or None if ``auto`` detects none."""
        return platform_of(self.as_options(), dict(os.environb))


@dataclass(frozen=True, slots=True)
class PlatformProof:
    """A token signed by the platform. `where` is its source, and not secret."""

    platform: str
    token: Secret
    where: str
    claims: Mapping[str, object] = field(default_factory=dict, repr=False, compare=False)

    @property
    def subject(self) -> str:
        return str(self.claims.get("sub", ""))


def check_proof(proof: PlatformProof, audience: str, *, hint: str, clock: Clock = SYSTEM_CLOCK) -> PlatformProof:
    """Return *proof* with its claims. Raises `CredentialError` if it is not valid for *audience*."""
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
    """Return the claims of a JWT without verifying it. None if it is not a JWT."""
    parts = token.split(".")
    if len(parts) != 3 or not all(parts) or not fits_token_header(token):
        return None
    try:
        claims = json.loads(urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
    except (ValueError, RecursionError, binascii.Error):
        return None
    return claims if isinstance(claims, dict) else None


def token_from_file(path: str) -> str:
    """Return the token in *path*. Raises `OSError`, or `ValueError` if it is not ASCII or too long."""
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
