"""Sign-ins for web applications that are under way: where a browser wanted to go, and the code that takes it back.

    application's host   begin   -> an id in the URL, and a secret in a cookie: the record has the target and a digest
    gateway's host       find    -> the person signs in, or is signed in already
                         issue   -> a code in the URL, good once and for half a minute
    application's host   redeem  -> only for the browser whose cookie has the secret of the beginning

Called by `visits` and by the adapter of the engine. No address is ever taken from a request to ``/auth``: the target is
in the record, and was checked before it was put there. The id is no secret. Whoever follows a link with somebody
else's id or code has another cookie, and gets nothing by it: neither their own session into another browser, nor
another person's session into theirs.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from datetime import timedelta
from hashlib import sha256
from hmac import compare_digest

from ostiary.core.clock import Clock
from ostiary.errors import LoginRefused
from ostiary.gateway.login.cookies import Cookie
from ostiary.gateway.login.records import Records
from ostiary.gateway.login.sessions.browser import Visitor
from ostiary.gateway.login.sign_in.required import required_from_json, required_json
from ostiary.interfaces.identity import LoginRequest, RequiredAuthentication
from ostiary.interfaces.token_store import RecordStore
from ostiary.model import Secret

LIFETIME = timedelta(minutes=10)
# A browser follows the redirect at once.
CODE_LIFETIME = timedelta(seconds=30)
# A longer one is not kept: the person then comes back to the beginning of the application.
LONGEST_TARGET = 2048
_SECRET_LENGTH = 43


@dataclass(frozen=True, slots=True)
class SignInRequest:
    """A browser wanted to see `target` of an application at `origin`. `browser` is the digest of its secret."""

    application: str
    origin: str
    target: str
    browser: str
    # What the person must prove, though they may be signed in.
    required: RequiredAuthentication | None = None


@dataclass(frozen=True, slots=True)
class Redeemed:
    """A code that was good: for which session, and what the cookie of the application needs besides its token."""

    sign_in_request: SignInRequest
    session_id: str
    keeping: Secret | None


class ApplicationSignIns:
    def __init__(self, store: RecordStore, *, secure: bool, clock: Clock) -> None:
        self._requests = Records(store, "application sign-in", LIFETIME, clock=clock)
        self._codes = Records(store, "application code", CODE_LIFETIME, clock=clock)
        self._cookie = Cookie("visit", secure=secure)

    async def begin(
        self,
        request: LoginRequest,
        *,
        application: str,
        origin: str,
        target: str,
        required: RequiredAuthentication | None = None,
    ) -> tuple[str, tuple[str, str]]:
        """Remember where the browser wanted to go; returns the id, and the header that binds it to the browser."""
        # One secret for all tabs: a second one would end the sign-in of the first.
        secret = self._secret(request) or secrets.token_urlsafe(32)
        request_id = secrets.token_urlsafe(32)
        value = {"application": application, "origin": origin, "target": target, "browser": _digest(secret)}
        more = {} if required is None else {"required": required_json(required)}
        await self._requests.put(request_id, {**value, **more})
        return request_id, self._cookie.set(secret, seconds=LIFETIME.total_seconds())

    async def find(self, request_id: str) -> SignInRequest | None:
        value = await self._requests.find(request_id)
        if value is None:
            return None
        required = required_from_json(value["required"]) if "required" in value else None
        return SignInRequest(**{**value, "required": required})

    async def issue_code(self, sign_in_request: SignInRequest, visitor: Visitor) -> str:
        """A code for the session of *visitor*."""
        code = secrets.token_urlsafe(32)
        value = {
            "application": sign_in_request.application,
            "origin": sign_in_request.origin,
            "target": sign_in_request.target,
        }
        keeping = visitor.keeping.reveal() if visitor.session.sealed else ""
        binding = {"browser": sign_in_request.browser, "session": visitor.session.id, "keeping": keeping}
        await self._codes.put(code, {**value, **binding})
        return code

    async def redeem(self, request: LoginRequest, code: str, origin: str) -> Redeemed:
        """What *code* is good for, at the application of *origin*.

        Raises `LoginRefused` if it is good for nothing. It is spent in any case.
        """
        value = await self._codes.take(code)
        if value is None:
            raise LoginRefused("this sign-in has expired: open the application again", cause="unknown or spent code")
        sign_in_request = SignInRequest(value["application"], value["origin"], value["target"], value["browser"])
        if sign_in_request.origin != origin:
            raise LoginRefused(_OTHER_BROWSER, cause="the code is for another host")
        if not compare_digest(sign_in_request.browser, _digest(self._secret(request))):
            raise LoginRefused(_OTHER_BROWSER, cause="the code was issued for another browser")
        return Redeemed(sign_in_request, value["session"], Secret(value["keeping"]) if value["keeping"] else None)

    def _secret(self, request: LoginRequest) -> str:
        secret = self._cookie.of(request)
        return secret if len(secret) == _SECRET_LENGTH else ""


_OTHER_BROWSER = "this sign-in was started in another browser: open the application again"


def _digest(secret: str) -> str:
    return sha256(b"ostiary browser\0" + secret.encode("utf-8", "surrogatepass")).hexdigest()
