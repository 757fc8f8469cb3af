"""The gateway's ``/auth``, as a command line uses it. Knows its endpoints and its errors, keeps nothing.

Called by `ways`, `turn` and the commands; `gateway_http` asks.
"""

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
# Clocks may differ by so much before it is worth telling kubectl another time than the gateway says.
SKEW = timedelta(seconds=5)


@dataclass(frozen=True, slots=True)
class Method:
    """An identity provider of the gateway. `kind` is ``redirect``, ``password``, ``negotiate`` or ``ambient``."""

    name: str
    kind: str


@dataclass(frozen=True, slots=True)
class Device:
    """A sign-in that is finished in a browser elsewhere."""

    code: Secret
    user_code: str
    address: str
    complete_address: str
    interval: float
    seconds: float


@dataclass(frozen=True, slots=True)
class ExchangedToken:
    """What the gateway gave for another token: an access token alone, which nothing renews.

    `scope` is what it may be used for, if that is less than its owner may. `expires_at` is by the clock of this
    machine.
    """

    token: Secret
    expires_at: datetime
    scope: str = ""
    user: str = ""


@dataclass(frozen=True, slots=True)
class StepUpTicket:
    """What a session must prove by `rule`. `request` waits for it; empty if nothing does."""

    ticket: Secret
    rule: str
    requires: str
    request: str


class RenewedElsewhere(Exception):
    """Look for what it brought in *seconds*, or ask again then."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        super().__init__()


class GatewayClient:
    """Talks to one gateway. *authorities_pem* None means the system's own authorities."""

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
        # What the gateway showed with its last answer; None before that, and without TLS.
        self.certificate: bytes | None = None
        self._clock = clock

    # --- signing in ---

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
        """By what the request itself proves; None if the gateway wants other proof than it was given."""
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
        """By a Kerberos ticket; also what the gateway proves itself with in turn."""
        reply = self._ask("GET", f"/auth/{quote(provider, safe='')}", headers={"Authorization": authorization})
        self._expect(reply, "the gateway refused the sign-in")
        return self._grant(reply), reply.www_authenticate

    def browser_address(
        self, *, challenge: str, port: int, state: str, client: str, provider: str | None, step_up: str = ""
    ) -> str:
        """Where the browser begins; it returns to this port of this machine. *step_up* is the ticket of a step-up."""
        query = {"challenge": challenge, "port": str(port), "state": state, "client": client}
        if provider is not None:
            query["provider"] = provider
        if step_up:
            query["step_up"] = step_up
        return f"{self.server}/auth/cli?{urlencode(query)}"

    def redeem(self, code: str, verifier: Secret) -> SignInGrant:
        """What the browser brought back, for a session."""
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
        """A session, or what keeps it from being there yet: ``authorization_pending`` or ``slow_down``."""
        reply = self._poll_device(device)
        return reply if isinstance(reply, str) else self._grant(reply)

    def poll_device_step_up(self, device: Device) -> str:
        """The same for a step-up: empty when it is done."""
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
        """What the session must prove: for *rule*, or for a request that waits; None if nothing.

        The gateway may take *wait* seconds for its answer.
        """
        form = {"rule": rule} if rule else {"wait": str(wait)}
        reply = self._ask("POST", "/auth/step-up", form, headers=_bearer(token))
        self._expect(reply, "the gateway did not say what must be proved")
        if reply.fields.get("needed") is not True:
            return None
        fields = reply.fields
        # Nothing waits for one that was asked for beforehand.
        waiting = str(fields.get("request") or "")
        return StepUpTicket(Secret(_text(fields, "ticket")), _text(fields, "rule"), _text(fields, "requires"), waiting)

    def refuse_step_up(self, token: Secret, ticket: StepUpTicket) -> None:
        """Nobody will prove it: what waits need not wait any longer."""
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
        """A token for the one that a platform gave to a job or pod (RFC 8693)."""
        form = {"grant_type": GRANT_TYPE, "subject_token": subject.reveal(), "subject_token_type": JWT}
        reply = self._ask("POST", "/auth/token", form | ({"scope": scope} if scope else {}))
        hint = _EXCHANGE_HINTS.get(reply.fields.get("error"), _EXCHANGE_HINT)
        self._expect(reply, "the gateway refused the platform's token", hint=hint, words=_EXCHANGE_WORDS)
        exchanged = self._read_exchanged_token(reply)
        return self._check_limited(exchanged) if scope else exchanged

    def narrow(self, token: Secret, *, scope: str, actor: str, lifetime: timedelta) -> ExchangedToken:
        """A token for *scope* only, made with *token*; raises `ScopeError` if that has less than is asked for."""
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
        """A JWT for a cluster that trusts the gateway's JWTs, for a token of the gateway (RFC 8693)."""
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
        """A token of a service account of the gateway. The owner of *token* must be allowed to create it."""
        spec = {"expirationSeconds": seconds, "scope": scope or None}
        body = json.dumps({"spec": {key: value for key, value in spec.items() if value is not None}}).encode()
        path = f"/apis/ostiary.dev/v1/namespaces/{account.namespace}/serviceaccounts/{account.name}/token"
        # Read before the request: the token may expire a little earlier here than at the gateway, never later.
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
            # Both by the gateway's clock, which may differ from ours.
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
        """A gateway that does not know scopes gives a whole token, and whoever asked would take it for less."""
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
        # By the clock of this machine: what counts is how long it lives.
        return ExchangedToken(Secret(token), self._clock.now() + timedelta(seconds=seconds), scope, user)

    # --- what happens to a session later ---

    def renew(self, renewal: Secret) -> SignInGrant | None:
        """A new pair of tokens; None if the session has ended, so that only another sign-in helps.

        Raises `RenewedElsewhere` if somebody has used *renewal* a moment ago.
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
        """The clusters that the token's owner can use; and whether about some nobody could be asked."""
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

    # --- one request ---

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
        """Raise what the gateway said, unless it said yes."""
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
            # What counts is how long it lives: kubectl and we judge by the clock of this machine.
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
        """How far our clock is ahead of theirs."""
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
