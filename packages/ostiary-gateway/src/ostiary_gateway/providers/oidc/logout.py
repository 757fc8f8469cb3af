"""Logout with an OpenID Connect issuer: requests from the issuer, and the redirect there when a user signs out here.

    POST  logout_token       Back-Channel Logout 1.0: a signed token, sent by the issuer's server
    GET   iss and sid        Front-Channel Logout 1.0: a frame in a page of the issuer
    GET   anything else      a browser returns from the issuer's page (RP-Initiated Logout 1.0)

All of them arrive at `OidcLogouts.handle`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from ostiary.core.clock import Clock
from ostiary.errors import LoginRefused
from ostiary_gateway.interfaces.identity import LoginRequest, Logout, Redirect, SignOut
from ostiary_gateway.providers.common.jwt import (
    MAX_SUBJECT,
    Claims,
    TokenRefused,
    TokenRules,
    check_claims,
    parse_token,
    time_of,
    verify_signature_with,
)
from ostiary_gateway.providers.common.jwt_issuer import Issuer, endpoint
from ostiary_gateway.providers.common.outbound import Outbound

EVENT = "http://schemas.openid.net/event/backchannel-logout"
# ID tokens may have the type "jwt", too; `events` and the absence of a nonce distinguish logout tokens.
TYPES = frozenset(("logout+jwt", "jwt"))
# Lifetime of a logout token without `exp`, and the maximum lifetime of any. Until it ends, the token's id is stored to
# detect replays.
USUAL_LIFE = timedelta(minutes=2)
LONGEST_LIFE = timedelta(minutes=10)
MAX_ID = 1024
_NOT_ACCEPTED = "the logout is not accepted"


class OidcLogouts:
    """Handle logouts of one issuer. *rules* are those of ID tokens.

    A logout token is verified by its signature, times and events. A front-channel request proves only that the sender
    knows the issuer's session id, so it is accepted only with *front_channel*.
    """

    def __init__(
        self,
        issuer: Issuer,
        rules: TokenRules,
        outbound: Outbound,
        *,
        client_id: str,
        front_channel: bool,
        ends_session: bool,
        clock: Clock,
    ) -> None:
        self._issuer = issuer
        # `client_id` would require a subject, but a logout may name a session only.
        self._rules = replace(rules, audiences=frozenset((client_id,)), client_id="", types=TYPES)
        self._outbound = outbound
        self._client_id = client_id
        self._front_channel = front_channel
        self._ends_session = ends_session
        self._clock = clock

    # --- requests from the issuer ---

    async def handle(self, request: LoginRequest) -> Logout:
        if request.method == "POST":
            return await self._back_channel(request)
        names = {name for name, _ in request.query}
        if not names & {"sid", "iss", "logout_token"}:
            return Logout(is_return=True)
        return self._in_frame(request)

    async def _back_channel(self, request: LoginRequest) -> Logout:
        tokens = [value for name, value in request.form if name == "logout_token"]
        if len(tokens) != 1:
            raise LoginRefused(_NOT_ACCEPTED, cause="the form has no logout_token, or several")
        try:
            return await self._verify(tokens[0])
        except TokenRefused as refused:
            raise LoginRefused(_NOT_ACCEPTED, cause=f"the logout token is not valid: {refused}") from None

    async def _verify(self, token: str) -> Logout:
        """Verify a logout token. Cheap checks come first: anyone can send tokens and make the gateway fetch keys."""
        parsed = parse_token(token)
        expires = _with_expiry(parsed.claims)
        check_claims({**parsed.claims, "exp": expires.timestamp()}, self._rules, now=self._clock.now())
        logout = _read_claims(parsed.claims, once_until=expires + 2 * self._rules.skew)
        await verify_signature_with(self._issuer, parsed, self._rules)
        return logout

    def _in_frame(self, request: LoginRequest) -> Logout:
        if not self._front_channel:
            cause = "a front-channel logout, and frontChannelLogout is not set"
            raise LoginRefused(_NOT_ACCEPTED, cause=cause)
        values = {name: [value for key, value in request.query if key == name and value] for name in ("iss", "sid")}
        if values["iss"] != [self._issuer.url]:
            raise LoginRefused(_NOT_ACCEPTED, cause="a front-channel logout without iss, or of another issuer")
        if len(values["sid"]) != 1 or len(values["sid"][0]) > MAX_ID:
            raise LoginRefused(_NOT_ACCEPTED, cause="a front-channel logout without sid, or with several")
        return Logout(session_id=values["sid"][0], verified=False)

    # --- the user signs out here ---

    async def sign_out(self, signed_out: SignOut) -> Redirect | None:
        """Return the redirect to the issuer's logout page, if any (RP-Initiated Logout 1.0).

        Without the ID token as a hint, most issuers show a confirmation page.
        """
        if not self._ends_session:
            return None
        page = await self._end_session_endpoint()
        if not page:
            return None
        parts = urlsplit(page)
        parameters = dict(parse_qsl(parts.query, keep_blank_values=True))
        if signed_out.hint is not None:
            parameters["id_token_hint"] = signed_out.hint.reveal()
        parameters |= {"client_id": self._client_id, "post_logout_redirect_uri": signed_out.return_url}
        return Redirect(urlunsplit(parts._replace(query=urlencode(parameters))))

    async def _end_session_endpoint(self) -> str:
        document = await self._issuer.document()
        plain = self._issuer.url.startswith("http://")
        try:
            return endpoint(document, "end_session_endpoint", plain=plain, optional=True)
        except ValueError as mistake:
            raise self._outbound.failure(self._issuer.url, str(mistake)) from None


def session_id_of(id_token: Claims) -> str:
    """Return the issuer's id of the session that the ID token was issued in, or an empty string."""
    sid = id_token.get("sid")
    return sid if isinstance(sid, str) and len(sid) <= MAX_ID else ""


def _read_claims(claims: Claims, *, once_until: datetime) -> Logout:
    events = claims.get("events")
    if not isinstance(events, Mapping) or not isinstance(events.get(EVENT), Mapping):
        raise TokenRefused("it has no event that says that somebody was logged out")
    if "nonce" in claims:
        raise TokenRefused("it has a nonce: it is an ID token")
    token_id = claims.get("jti")
    if not isinstance(token_id, str) or not 0 < len(token_id) <= MAX_ID:
        raise TokenRefused("it has no id (jti)")
    sid, subject = _optional_text(claims, "sid", MAX_ID), _optional_text(claims, "sub", MAX_SUBJECT)
    if not sid and not subject:
        raise TokenRefused("it names neither a session (sid) nor a person (sub)")
    return Logout(sid, subject, token_id=token_id, once_until=once_until)


def _with_expiry(claims: Claims) -> datetime:
    """Return when the logout token expires. It must have ``iat`` but need not have ``exp``."""
    issued, expires = time_of(claims, "iat"), time_of(claims, "exp")
    if issued is None:
        raise TokenRefused("it has no issue time")
    try:
        issued_at = datetime.fromtimestamp(issued, UTC)
        usual = issued_at + USUAL_LIFE if expires is None else datetime.fromtimestamp(expires, UTC)
        return min(usual, issued_at + LONGEST_LIFE)
    except (OverflowError, ValueError):
        raise TokenRefused("its times are out of range") from None


def _optional_text(claims: Claims, name: str, longest: int) -> str:
    value = claims.get(name)
    if value is None:
        return ""
    if not isinstance(value, str) or not 0 < len(value) <= longest:
        raise TokenRefused(f"its {name} is not a text of 1 to {longest} characters")
    return value
