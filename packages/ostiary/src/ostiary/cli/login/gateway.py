"""Client for the ``/auth`` endpoints of a gateway, and their errors. Stateless."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from urllib.parse import quote, urlencode

from ostiary.cli.gateway_http import SECONDS, GatewayHttp, Reply
from ostiary.cli.login.sessions import SignInGrant
from ostiary.core.account_names import AccountName
from ostiary.core.clock import SYSTEM_CLOCK, Clock
from ostiary.core.text import fits_token_header
from ostiary.errors import CredentialError, LoginRefused, OstiaryError, ProviderError, ScopeError
from ostiary.model import Secret
from ostiary.wire.kubeconfig import OfferedCluster

LONGEST_PAUSE = 2.0
# RFC 8693.
GRANT_TYPE = "urn:ietf:params:oauth:grant-type:token-exchange"
JWT = "urn:ietf:params:oauth:token-type:jwt"
ACCESS_TOKEN = "urn:ietf:params:oauth:token-type:access_token"  # noqa: S105  # no password
# Clock differences up to this are ignored; larger ones are corrected in the expiry passed to kubectl.
SKEW = timedelta(seconds=5)


@dataclass(frozen=True, slots=True)
class Method:
    """An identity provider of the gateway. `kind` is ``redirect``, ``password``, ``negotiate`` or ``ambient``."""

    name: str
    kind: str


@dataclass(frozen=True, slots=True)
class Device:
    """A device authorization: a sign-in that is completed in a browser elsewhere."""

    code: Secret
    user_code: str
    address: str
    complete_address: str
    interval: float
    seconds: float


@dataclass(frozen=True, slots=True)
class ExchangedToken:
    """The result of a token exchange: an access token without a refresh token.

    `scope` is set for a scoped token. `expires_at` is by the clock of this machine.
    """

    token: Secret
    expires_at: datetime
    scope: str = ""
    user: str = ""


@dataclass(frozen=True, slots=True)
class StepUpTicket:
    """A step-up that `rule` requires of a session. `request` is the waiting request, or empty."""

    ticket: Secret
    rule: str
    requires: str
    request: str


class RenewedElsewhere(Exception):
    """Another process has just refreshed the session. Look for its result in *seconds*, or retry then."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        super().__init__()


class GatewayClient:
    """A client for one gateway. With *authorities_pem* None, the system's authorities apply."""

    def __init__(
        self,
        server: str,
        *,
        authorities_pem: str | None = None,
        seconds: float = SECONDS,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._http = GatewayHttp(server, authorities_pem=authorities_pem, seconds=seconds)
        self.server = self._http.server
        self.authorities_pem = authorities_pem
        # The gateway's certificate in the last response. None before that, and without TLS.
        self.certificate: bytes | None = None
        self._clock = clock

    # --- sign-in ---

    def methods(self) -> list[Method]:
        reply = self._ask("GET", "/auth/methods")
        elsewhere = "check that this is the URL of the gateway, not of a server behind it"
        self._expect(reply, "the gateway did not return its ways to sign in", hint=elsewhere)
        providers = reply.fields.get("providers")
        if not isinstance(providers, list) or not all(isinstance(each, dict) for each in providers):
            raise self._http.not_understood()
        return [Method(_text(each, "name"), _text(each, "kind")) for each in providers]

    def sign_in_directly(
        self, provider: str, *, username: str = "", password: Secret | None = None
    ) -> SignInGrant | None:
        """Sign in with the credentials of the request itself. None if the gateway requires other credentials."""
        headers = {}
        if password is not None:
            pair = f"{username}:{password.reveal()}".encode()
            headers["Authorization"] = f"Basic {b64encode(pair).decode()}"
        reply = self._ask("GET", f"/auth/{quote(provider, safe='')}", headers=headers)
        if password is None and reply.status in (300, 302, 303, 307, 401):
            return None
        self._expect(reply, "the gateway refused the sign-in")
        return self._grant(reply)

    def sign_in_by_ticket(self, provider: str, authorization: str) -> tuple[SignInGrant, str]:
        """Sign in with a Kerberos ticket. Also returns the header with which the gateway authenticates itself."""
        reply = self._ask("GET", f"/auth/{quote(provider, safe='')}", headers={"Authorization": authorization})
        self._expect(reply, "the gateway refused the sign-in")
        return self._grant(reply), reply.www_authenticate

    def browser_address(
        self, *, challenge: str, port: int, state: str, client: str, provider: str | None, step_up: str = ""
    ) -> str:
        """Return the URL to open in the browser, which returns to *port* on loopback.

        *step_up* is the ticket of a step-up.
        """
        query = {"challenge": challenge, "port": str(port), "state": state, "client": client}
        if provider is not None:
            query["provider"] = provider
        if step_up:
            query["step_up"] = step_up
        return f"{self.server}/auth/cli?{urlencode(query)}"

    def redeem(self, code: str, verifier: Secret) -> SignInGrant:
        """Redeem the code from the browser for a session."""
        reply = self._ask("POST", "/auth/cli/token", {"code": code, "verifier": verifier.reveal()})
        self._expect(reply, "the gateway did not finish the sign-in")
        return self._grant(reply)

    def begin_device(self, client: str, *, step_up: str = "") -> Device:
        reply = self._ask("POST", "/auth/device", {"client": client} | ({"step_up": step_up} if step_up else {}))
        self._expect(reply, "the gateway does not support sign-in with a device code")
        fields = reply.fields
        address = _text(fields, "verification_uri")
        return Device(
            Secret(_text(fields, "device_code")),
            _text(fields, "user_code"),
            address,
            str(fields.get("verification_uri_complete") or address),
            _number(fields, "interval", 5.0),
            _number(fields, "expires_in", 600.0),
        )

    def poll_device(self, device: Device) -> SignInGrant | str:
        """Return the session, or the reason why it is pending: ``authorization_pending`` or ``slow_down``."""
        reply = self._poll_device(device)
        return reply if isinstance(reply, str) else self._grant(reply)

    def poll_device_step_up(self, device: Device) -> str:
        """Like `poll_device`, for a step-up. Returns an empty string when it is done."""
        reply = self._poll_device(device)
        if isinstance(reply, str):
            return reply
        self._expect_stepped_up(reply)
        return ""

    def _poll_device(self, device: Device) -> Reply | str:
        reply = self._ask("POST", "/auth/device/token", {"device_code": device.code.reveal()})
        reason = reply.fields.get("error")
        if reply.status == 400 and reason in ("authorization_pending", "slow_down"):
            return str(reason)
        if reply.status == 400 and reason == "expired_token":
            raise sign_in_timeout("the code was not entered in time")
        self._expect(reply, "the gateway did not finish the sign-in")
        return reply

    # --- step-ups ---

    def step_up_needed(self, token: Secret, *, rule: str = "", wait: int = 0) -> StepUpTicket | None:
        """Return the step-up required by *rule*, or by a waiting request. None if there is none.

        The gateway may delay its response by up to *wait* seconds.
        """
        form = {"rule": rule} if rule else {"wait": str(wait)}
        reply = self._ask("POST", "/auth/step-up", form, headers=_bearer(token))
        self._expect(reply, "the gateway did not say what must be proved")
        if reply.fields.get("needed") is not True:
            return None
        fields = reply.fields
        # Empty for a step-up requested in advance: no request waits for it.
        waiting = str(fields.get("request") or "")
        return StepUpTicket(Secret(_text(fields, "ticket")), _text(fields, "rule"), _text(fields, "requires"), waiting)

    def refuse_step_up(self, token: Secret, ticket: StepUpTicket) -> None:
        """Cancel the step-up, so that the waiting request fails now."""
        form = {"ticket": ticket.ticket.reveal(), "refused": "true"}
        self._expect(self._ask("POST", "/auth/step-up", form, headers=_bearer(token)), "the gateway was not told")

    def redeem_step_up(self, code: str, verifier: Secret) -> None:
        reply = self._ask("POST", "/auth/cli/token", {"code": code, "verifier": verifier.reveal()})
        self._expect(reply, "the gateway did not accept the step-up")
        self._expect_stepped_up(reply)

    def _expect_stepped_up(self, reply: Reply) -> None:
        if reply.fields.get("stepped_up") is not True:
            raise self._http.not_understood()

    def exchange(self, subject: Secret, *, scope: str = "") -> ExchangedToken:
        """Exchange a token of the platform of a job or pod for a token of the gateway (RFC 8693)."""
        form = {"grant_type": GRANT_TYPE, "subject_token": subject.reveal(), "subject_token_type": JWT}
        reply = self._ask("POST", "/auth/token", form | ({"scope": scope} if scope else {}))
        hint = _EXCHANGE_HINTS.get(reply.fields.get("error"), _EXCHANGE_HINT)
        self._expect(reply, "the gateway refused the platform's token", hint=hint, words=_EXCHANGE_WORDS)
        exchanged = self._read_exchanged_token(reply)
        return self._check_limited(exchanged) if scope else exchanged

    def narrow(self, token: Secret, *, scope: str, actor: str, lifetime: timedelta) -> ExchangedToken:
        """Exchange *token* for one limited to *scope*. Raises `ScopeError` if *scope* exceeds that of *token*."""
        form = {
            "grant_type": GRANT_TYPE,
            "subject_token": token.reveal(),
            "subject_token_type": ACCESS_TOKEN,
            "scope": scope,
            "expires_in": str(max(1, int(lifetime.total_seconds()))),
            **({"actor": actor} if actor else {}),
        }
        reply, summary = self._ask("POST", "/auth/token", form), "the gateway did not make the token"
        if reply.status == 400 and reply.fields.get("error") == "invalid_scope":
            cause = str(reply.fields.get("error_description") or "the scope is not possible")
            raise ScopeError(summary, cause=cause, where=self.server)
        self._expect(reply, summary)
        return self._check_limited(self._read_exchanged_token(reply))

    def exchange_for_jwt(self, token: Secret, audience: str) -> ExchangedToken:
        """Exchange a token of the gateway for a JWT for a cluster that trusts the gateway's JWTs (RFC 8693)."""
        form = {"grant_type": GRANT_TYPE, "subject_token": token.reveal(), "subject_token_type": ACCESS_TOKEN}
        reply = self._ask("POST", "/auth/token", {**form, "requested_token_type": JWT, "audience": audience})
        self._expect(
            reply,
            "the gateway gave no JWT",
            hint="ask its operator which audiences it issues JWTs for: issuer.audiences",
            words=_JWT_WORDS,
        )
        return self._read_exchanged_token(reply)

    def service_account_token(
        self, token: Secret, account: AccountName, *, seconds: int | None = None, scope: str = ""
    ) -> ExchangedToken:
        """Create a token of a service account of the gateway. The owner of *token* must be allowed to."""
        spec = {"expirationSeconds": seconds, "scope": scope or None}
        body = json.dumps({"spec": {key: value for key, value in spec.items() if value is not None}}).encode()
        path = f"/apis/ostiary.dev/v1/namespaces/{account.namespace}/serviceaccounts/{account.name}/token"
        # Read before the request: the token may expire slightly earlier here than at the gateway, but never later.
        requested_at = self._clock.now()
        reply = self._http.ask("POST", path, body, headers=_bearer(token) | {"Content-Type": "application/json"})
        if "kind" not in reply.fields:
            raise self._http.not_understood(f"it responded {reply.status} without a Kubernetes object")
        if reply.status >= 300:
            raise self._account_error(reply, account)
        metadata, status = (_nested(reply.fields, name) for name in ("metadata", "status"))
        issued = _text(status, "token")
        try:
            created = datetime.fromisoformat(_text(metadata, "creationTimestamp"))
            # Both times are by the gateway's clock, which may differ from ours.
            lifetime = datetime.fromisoformat(_text(status, "expirationTimestamp")) - created
        except (TypeError, ValueError):
            raise self._http.not_understood() from None
        if not fits_token_header(issued):
            raise self._http.not_understood("it sent something that is not a bearer token")
        return ExchangedToken(Secret(issued), requested_at + max(lifetime, timedelta(0)))

    def _account_error(self, reply: Reply, account: AccountName) -> OstiaryError:
        cause = f"{reply.status}: {reply.fields.get('message') or 'no reason given'}"
        summary = f"no token for the service account {account}"
        if reply.status == 429 or reply.status >= 500:
            return ProviderError(
                summary, cause=cause, where=self.server, hint="retry later", code="gateway-unreachable"
            )
        hint = _ACCOUNT_HINTS.get(reply.status)
        return LoginRefused(summary, cause=cause, where=self.server, hint=hint, code="gateway-refused")

    def _check_limited(self, exchanged: ExchangedToken) -> ExchangedToken:
        """Raise if the token is not scoped: a gateway without support for scopes issues an unrestricted token."""
        if not exchanged.scope:
            raise self._http.not_understood("it did not limit the token to a scope")
        return exchanged

    def _read_exchanged_token(self, reply: Reply) -> ExchangedToken:
        token, seconds = _text(reply.fields, "access_token"), reply.fields.get("expires_in")
        if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not 0 < seconds < 10**9:
            raise self._http.not_understood("it does not say how long the token is good for")
        if not fits_token_header(token) or str(reply.fields.get("token_type", "")).lower() != "bearer":
            raise self._http.not_understood("it gave something that is not a bearer token")
        scope, user = (str(reply.fields.get(key, "")) for key in ("scope", "user"))
        # By the clock of this machine: only the lifetime matters.
        return ExchangedToken(Secret(token), self._clock.now() + timedelta(seconds=seconds), scope, user)

    # --- session ---

    def renew(self, renewal: Secret) -> SignInGrant | None:
        """Refresh the session. None if it has ended, so that a new sign-in is required.

        Raises `RenewedElsewhere` if *renewal* was used a moment ago.
        """
        reply = self._ask("POST", "/auth/renew", {"renewal_token": renewal.reveal()})
        if reply.status == 409:
            raise RenewedElsewhere(_seconds(reply.retry_after))
        if reply.status in (400, 401, 403):
            return None
        self._expect(reply, "the session could not be refreshed")
        return self._grant(reply)

    def logout(self, renewal: Secret, *, everywhere: bool) -> None:
        form = {"renewal_token": renewal.reveal(), **({"everywhere": "true"} if everywhere else {})}
        self._expect(self._ask("POST", "/auth/logout", form), "the gateway did not end the session")

    def whoami(self, token: Secret) -> Mapping[str, object]:
        return self._ask_as(token, "/auth/whoami", "the gateway did not return your user name").fields

    def clusters(self, token: Secret) -> tuple[list[OfferedCluster], bool]:
        """Return the clusters that the token's owner can use, and whether any could not be checked."""
        reply = self._ask_as(token, "/auth/upstreams", "the gateway did not return your clusters")
        listed = reply.fields.get("upstreams")
        if not isinstance(listed, list) or not all(isinstance(each, dict) for each in listed):
            raise self._http.not_understood()
        clusters = [OfferedCluster(_text(each, "name"), _text(each, "server")) for each in listed]
        return clusters, reply.fields.get("incomplete") is not False

    def _ask_as(self, token: Secret, path: str, summary: str) -> Reply:
        reply = self._ask("GET", path, headers=_bearer(token))
        if reply.status == 401:
            raise CredentialError(
                "the session has expired or was revoked",
                cause="the gateway does not know this session any more",
                hint=f"ostiary login --server {self.server}",
                code="sign-in-needed",
            )
        self._expect(reply, summary)
        return reply

    # --- requests ---

    def _ask(
        self,
        method: str,
        path: str,
        form: Mapping[str, str] | None = None,
        *,
        headers: Mapping[str, str] | None = None,
    ) -> Reply:
        body = None if form is None else urlencode(form).encode()
        reply = self._http.ask(method, path, body, headers=headers or {})
        self.certificate = reply.certificate
        return reply

    def _expect(
        self, reply: Reply, summary: str, *, hint: str | None = None, words: Mapping[str, str] | None = None
    ) -> None:
        """Raise the gateway's error unless the request succeeded."""
        if reply.status in (200, 204):
            return
        message = next(filter(None, map(reply.fields.get, ("message", "error_description", "error"))), None)
        cause = message if isinstance(message, str) else f"it answered with status {reply.status}"
        if reply.status == 404:
            raise self._http.not_understood()
        if reply.status == 429:
            wait = f"retry after {reply.retry_after} seconds" if reply.retry_after.isdigit() else "retry later"
            raise LoginRefused(summary, cause=cause, where=self.server, hint=wait, code="sign-in-refused")
        if reply.status in (400, 401, 403):
            if words is None:
                words, hint = _WORDS, _HINTS.get(cause, hint)
            raise LoginRefused(
                summary, cause=words.get(cause, cause), where=self.server, hint=hint, code="sign-in-refused"
            )
        raise ProviderError(summary, cause=cause, where=self.server, hint="retry later", code="gateway-unreachable")

    def _grant(self, reply: Reply) -> SignInGrant:
        fields = reply.fields
        try:
            # Only the lifetime matters: kubectl and ostiary check expiry by the clock of this machine.
            ahead = self._ahead(reply.time)
            grant = SignInGrant(
                token=Secret(_text(fields, "token")),
                expires_at=datetime.fromisoformat(_text(fields, "expires_at")) + ahead,
                renewal=Secret(_text(fields, "renewal_token")),
                session=_text(fields, "session"),
                session_expires_at=datetime.fromisoformat(_text(fields, "session_expires_at")) + ahead,
                user=_text(fields, "user"),
                groups=_texts(fields, "groups"),
                step_up=fields.get("step_up") is True,
            )
        except (ValueError, TypeError, OverflowError):
            raise self._http.not_understood() from None
        if not fits_token_header(grant.token.reveal()) or grant.expires_at.tzinfo is None:
            raise self._http.not_understood()
        if grant.expires_at <= self._clock.now():
            raise ProviderError(
                "the gateway returned a token that has already expired",
                cause="the clocks of this machine and of the gateway differ",
                where=self.server,
                hint="correct the clock of this machine",
                code="gateway-answer-invalid",
            )
        return grant

    def _ahead(self, theirs: datetime | None) -> timedelta:
        """Return how far our clock is ahead of the gateway's."""
        ahead = timedelta(0) if theirs is None else self._clock.now() - theirs
        return ahead if abs(ahead) > SKEW else timedelta(0)


_WORDS = {
    "access_denied": "sign-in was refused in the browser",
    "invalid_grant": "the sign-in code has expired",
}
# RFC 6749, section 5.2, and RFC 8693, section 2.2.2.
_EXCHANGE_WORDS = {
    "invalid_request": "it takes no token of this form",
    "invalid_grant": "it does not accept this token",
    "invalid_target": "it does not accept this token's audience",
    "invalid_scope": "it does not understand what the token shall be able to do, or that would be more than allowed",
    "unsupported_grant_type": "it exchanges no tokens",
}
_JWT_WORDS = {
    "invalid_target": "it issues no JWTs for this audience",
    "invalid_grant": "the session has ended, or its token may do less than its owner",
    "invalid_request": "it issues no JWTs",
    "unsupported_grant_type": "it issues no JWTs",
}
_ACCOUNT_HINTS = {
    401: "the token that the request was made with is unknown, expired or revoked: sign in again, or replace its file",
    403: "the policy must allow the user to create serviceaccounts/token of this account in the API group ostiary.dev",
    404: "create the account: ostiary-gateway accounts create",
}
_EXCHANGE_HINT = "compare issuer, audience and subject of the token with the workload provider of the gateway"
_EXCHANGE_HINTS: Mapping[object, str] = {
    "invalid_scope": 'write --can as in: --can "get,list pods -n shop"',
    "unsupported_grant_type": "the gateway needs an identity provider for workloads",
}
_HINTS = {
    "invalid_grant": "sign in again, and finish within a minute",
    "there is no step-up rule of this name": "leave the name out: the first rule that is not met is used",
}


def sign_in_timeout(cause: str) -> CredentialError:
    return CredentialError(
        "sign-in timed out",
        cause=cause,
        hint="run ostiary login and finish the sign-in in time",
        code="sign-in-unanswered",
    )


def _bearer(token: Secret) -> dict[str, str]:
    return {"Authorization": f"Bearer {token.reveal()}"}


def _text(fields: Mapping[str, object], name: str) -> str:
    value = fields.get(name)
    if not isinstance(value, str) or not value:
        raise ProviderError(
            "the gateway sent an invalid response",
            cause=f"{name} is missing",
            hint="check that this is the URL of the gateway",
            code="gateway-answer-invalid",
        )
    return value


def _nested(fields: Mapping[str, object], name: str) -> Mapping[str, object]:
    value = fields.get(name)
    return value if isinstance(value, dict) else {}


def _texts(fields: Mapping[str, object], name: str) -> tuple[str, ...]:
    values = fields.get(name) or ()
    if not isinstance(values, (list, tuple)):
        raise TypeError
    return tuple(map(str, values))


def _number(fields: Mapping[str, object], name: str, default: float) -> float:
    value = fields.get(name, default)
    return float(value) if isinstance(value, (int, float)) and 0 <= value < 86400 else default


def _seconds(retry_after: str) -> float:
    return min(float(retry_after), LONGEST_PAUSE) if retry_after.isdecimal() else LONGEST_PAUSE
