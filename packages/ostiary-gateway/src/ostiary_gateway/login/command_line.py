"""Sign-in for a command line on the user's machine.

    /auth/cli?challenge&port&state&client  ->  sign in, in the browser  ->  http://127.0.0.1:<port>/callback?code&state
                                           ->  it failed  ->  .../callback?error&error_description&request_id&failure
    POST /auth/cli/token, code and verifier  ->  tokens

The browser carries a code that can be used once, within a minute, and only with the secret whose digest the command
line sent (PKCE, RFC 7636). Tokens are never in a URL, and the code alone is useless. The redirect always targets the
loopback address of the browser's machine.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
import secrets
from dataclasses import dataclass
from datetime import timedelta
from urllib.parse import urlencode

from ostiary.core.clock import Clock
from ostiary_gateway.interfaces.identity import LoginRequest
from ostiary_gateway.interfaces.token_store import RecordStore, Session
from ostiary_gateway.login.identity_service import SignedIn
from ostiary_gateway.login.login_transactions import CliReturnTo
from ostiary_gateway.login.machine_grants import Grants
from ostiary_gateway.login.records import Records
from ostiary_gateway.login.visit import client_text, field, only, short
from ostiary_gateway.sessions import Issued

CODE_LIFETIME = timedelta(seconds=60)
# Long enough to reload the page.
FAILURE_LIFETIME = timedelta(minutes=10)
LONGEST_CAUSE = 500
MAX_STATE = 128
_CHALLENGE = re.compile(r"[A-Za-z0-9_-]{43}")
_VERIFIER = re.compile(r"[A-Za-z0-9._~-]{43,128}")
_PORT = re.compile(r"[1-9][0-9]{3,4}")
_PARAMETERS = frozenset(("challenge", "port", "state", "client", "provider", "step_up"))


def goal_of(request: LoginRequest) -> CliReturnTo:
    """Parse the query. Raises `ValueError` with a message that may be shown to the user."""
    names = [name for name, _ in request.query]
    if len(set(names)) < len(names) or not _PARAMETERS.issuperset(names):
        raise ValueError("duplicate or unknown parameter")
    challenge, port, state = (only(request.query, name) or "" for name in ("challenge", "port", "state"))
    if not _CHALLENGE.fullmatch(challenge):
        raise ValueError("the challenge is not a SHA-256 digest in base64url")
    if not _PORT.fullmatch(port) or not 1024 <= int(port) <= 65535:
        raise ValueError("the port is not a number from 1024 to 65535")
    if not state or len(state) > MAX_STATE or not state.isprintable() or not state.isascii():
        raise ValueError(f"the state is missing, or longer than {MAX_STATE} characters, or not visible ASCII")
    client, ticket = short(only(request.query, "client") or ""), only(request.query, "step_up") or ""
    return CliReturnTo(challenge, int(port), state, client, ticket)


def callback(goal: CliReturnTo, **answer: str) -> str:
    """Return the callback URL. Its host and path are fixed.

    ``page`` says that /auth/cli/ended exists: the command line then redirects the browser there, away from the URL with
    the code.
    """
    return f"http://127.0.0.1:{goal.port}/callback?{urlencode({**answer, 'page': '1', 'state': goal.state})}"


@dataclass(frozen=True, slots=True)
class FailedSignIn:
    """The disclosable reason of a failed command-line sign-in. *step_up*: the user is still signed in."""

    cause: str
    request_id: str
    step_up: bool


class FailedSignIns:
    """Content of the last page of a failed sign-in.

    A random id identifies it: no link can inject text into that page.
    """

    def __init__(self, store: RecordStore, *, clock: Clock) -> None:
        self._records = Records(store, "failed sign-in", FAILURE_LIFETIME, clock=clock)

    async def callback(self, goal: CliReturnTo, code: str, cause: str, request_id: str) -> str:
        """Store the failure. Return the callback URL that reports it to the command line."""
        cause, failure = cause[:LONGEST_CAUSE], secrets.token_urlsafe(16)
        try:
            await self._records.put(failure, {"cause": cause, "request_id": request_id, "step_up": bool(goal.step_up)})
        except Exception:
            # The store may be what failed. Report the error to the command line without the page.
            failure = ""
        told = {"error": code, "error_description": cause, "request_id": request_id, "failure": failure}
        return callback(goal, **{name: value for name, value in told.items() if value})

    async def find(self, failure: str) -> FailedSignIn | None:
        value = await self._records.find(failure) if failure else None
        return None if value is None else FailedSignIn(value["cause"], value["request_id"], value["step_up"])


class Codes:
    """Sign-ins for command lines, stored under a code until the command line fetches the result."""

    def __init__(self, store: RecordStore, grants: Grants, *, clock: Clock) -> None:
        self._records = Records(store, "cli code", CODE_LIFETIME, clock=clock)
        self._grants = grants
        self._clock = clock

    async def issue(self, goal: CliReturnTo, signed: SignedIn, request: LoginRequest) -> str:
        """Issue a code for the command line. Raises `LoginRefused` if a step-up is for another user than *signed*."""
        code = secrets.token_urlsafe(32)
        client = client_text(request, goal.client or "command line")
        grant = await self._grants.make(signed, client=client, at=self._clock.now(), step_up=goal.step_up)
        await self._records.put(code, {**grant, "challenge": goal.challenge})
        return code

    async def exchange(self, request: LoginRequest) -> Issued | Session | None:
        """Return the tokens for a code and its verifier, or the session that was stepped up.

        The first attempt consumes the code, even if it fails.
        """
        code, verifier = field(request, "code"), field(request, "verifier")
        grant = await self._records.take(code) if code else None
        if grant is None or verifier is None or not _VERIFIER.fullmatch(verifier):
            return None
        if not hmac.compare_digest(_challenge(verifier), grant["challenge"]):
            return None
        return await self._grants.redeem(grant)


def _challenge(verifier: str) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(verifier.encode()).digest()).decode().rstrip("=")
