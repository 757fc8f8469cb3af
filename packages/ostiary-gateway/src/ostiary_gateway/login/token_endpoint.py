"""Token endpoint for clients without a browser: command-line codes, device codes and token exchange (RFC 8693)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from ostiary.core.clock import SYSTEM_CLOCK, Clock
from ostiary.core.scopes import Delegation, decode, parse_scope
from ostiary.errors import LoginRefused, ProviderError, ScopeError
from ostiary.model import Secret
from ostiary_gateway.audit.sign_ins import LoginEventKind
from ostiary_gateway.capabilities import ability
from ostiary_gateway.config.provider import Identity
from ostiary_gateway.interfaces.identity import LoginRequest, VerifiedToken, VerifiesTokens
from ostiary_gateway.interfaces.shared_counts import ImmediateCounts
from ostiary_gateway.interfaces.token_store import Found, Session
from ostiary_gateway.limits.rates import Buckets
from ostiary_gateway.login import responses as answers
from ostiary_gateway.login.command_line import Codes
from ostiary_gateway.login.device import Devices, Pending
from ostiary_gateway.login.events import LoginEvents
from ostiary_gateway.login.groups import ContractBroken
from ostiary_gateway.login.identity_service import IdentityService
from ostiary_gateway.login.replay_cache import UsedTokens
from ostiary_gateway.login.responses import LoginAnswer
from ostiary_gateway.login.visit import AddressLimit, client_text, field, only
from ostiary_gateway.networks import network
from ostiary_gateway.sessions import Issued, IssuedToken, Tokens, well_formed
from ostiary_gateway.wire.token_format import as_bytes

if TYPE_CHECKING:
    from ostiary_gateway.issuer.issuer import JwtIssuer


class TokenRequests:
    """Exchange sign-in codes of command lines, and start and poll device logins.

    *step_up*: step-up rules are configured, and token responses say so.
    """

    def __init__(
        self, codes: Codes, devices: Devices, events: LoginEvents, starts: AddressLimit, *, step_up: bool
    ) -> None:
        self._step_up = step_up
        self._codes = codes
        self._devices = devices
        self._events = events
        self._starts = starts

    async def exchange_code(self, request: LoginRequest) -> LoginAnswer:
        if request.method != "POST":
            return answers.method_not_allowed(["POST"])
        try:
            pair = await self._codes.exchange(request)
        except Exception as error:
            return self._events.record_failure(error, request)
        if pair is None:
            cause = "the code is unknown, used, or belongs to another user"
            refusal = LoginRefused("invalid sign-in code", cause=cause)
            return self._events.record_refusal(refusal, request, answers.grant_refusal("invalid_grant"))
        return self._answer(request, pair)

    async def begin_device(self, request: LoginRequest) -> LoginAnswer:
        if wait := self._starts.wait(request):
            return answers.too_many(wait)
        try:
            return answers.json_answer(200, await self._devices.begin(request))
        except Exception as error:
            return self._events.record_failure(error, request)

    async def poll_device(self, request: LoginRequest) -> LoginAnswer:
        if request.method != "POST":
            return answers.method_not_allowed(["POST"])
        try:
            pair = await self._devices.poll(request)
        except Pending as pending:
            return answers.grant_refusal(pending.error, routine=pending.is_routine)
        except Exception as error:
            return self._events.record_failure(error, request)
        return self._answer(request, pair)

    def _answer(self, request: LoginRequest, granted: Issued | Session) -> LoginAnswer:
        if isinstance(granted, Session):
            self._events.record_session(LoginEventKind.STEPPED_UP, request, granted)
            return answers.stepped_up(granted)
        self._events.record_session(LoginEventKind.ISSUED, request, granted.session)
        return answers.token_pair(granted, step_up=self._step_up)


# Token exchange for a JWT (RFC 8693, ``requested_token_type`` JWT). The issuer decides which audiences get one.

GRANT = "urn:ietf:params:oauth:grant-type:token-exchange"
ACCESS_TOKEN = "urn:ietf:params:oauth:token-type:access_token"  # noqa: S105  # no password
JWT = "urn:ietf:params:oauth:token-type:jwt"
# Parameters that restrict the new token. A grant that cannot honour them rejects the request instead of ignoring them.
LESS = frozenset(("scope", "actor", "actor_token", "actor_token_type", "resource", "expires_in"))

# Return the session and token record of a valid token, or None if the token or its owner is no longer valid.
FindToken = Callable[[str], Awaitable[Found | None]]


class JwtRequests:
    """Token requests whose result is a JWT signed by the gateway."""

    def __init__(
        self, issuer: JwtIssuer | None, find_token: FindToken, events: LoginEvents, *, clock: Clock = SYSTEM_CLOCK
    ) -> None:
        self._issuer = issuer
        self._find_token = find_token
        self._events = events
        self._clock = clock

    async def exchange(self, request: LoginRequest) -> LoginAnswer:
        if field(request, "grant_type") != GRANT:
            return answers.grant_refusal("unsupported_grant_type")
        token = field(request, "subject_token")
        token_types = (field(request, "subject_token_type"), field(request, "requested_token_type"))
        if token is None or token_types != (ACCESS_TOKEN, JWT):
            return answers.grant_refusal("invalid_request")
        if any(name in LESS for name, _ in (*request.form, *request.query)):
            # A JWT cannot express a scope, so reject parameters that would restrict it.
            refusal = LoginRefused("a JWT cannot be narrowed", cause="a scope or an actor was asked for")
            return self._events.record_refusal(refusal, request, answers.grant_refusal("invalid_scope"))
        try:
            stored = await self._find_token(token)
        except Exception as error:
            return self._events.record_failure(error, request)
        if stored is None:
            refusal = LoginRefused("invalid subject token", cause="it is unknown, expired or revoked")
            return self._events.record_refusal(refusal, request, answers.grant_refusal("invalid_grant"))
        return await self.sign(stored, field(request, "audience") or "", request)

    async def sign(self, stored: Found, audience: str, request: LoginRequest) -> LoginAnswer:
        """Return a JWT for the owner of the token *stored*. The caller has verified the token."""
        if self._issuer is None:
            refusal = LoginRefused("this gateway signs no JWTs", cause="issuer is not configured")
            return self._events.record_refusal(refusal, request, answers.grant_refusal("invalid_target"))
        # Imported here: the module is loaded only if an issuer is configured, and then it is loaded already.
        from ostiary_gateway.issuer.issuer import AudienceRefused

        try:
            signed = await self._issuer.sign(stored, audience)
        except AudienceRefused as refusal:
            return self._events.record_refusal(refusal, request, answers.grant_refusal("invalid_target"))
        except LoginRefused as refusal:
            answer = answers.refusal(refusal) if refusal.retry_after else answers.grant_refusal("invalid_grant")
            return self._events.record_refusal(refusal, request, answer)
        except Exception as error:
            return self._events.record_failure(error, request)
        self._events.record_session(LoginEventKind.ISSUED, request, stored.session, reason=f"JWT for {audience}")
        return answers.json_answer(
            200,
            {
                "access_token": signed.token.reveal(),
                "issued_token_type": JWT,
                "token_type": "Bearer",
                "expires_in": max(0, int((signed.expires_at - self._clock.now()).total_seconds())),
            },
        )


# Token exchange:
#
#     POST /auth/token, subject_token            token of a platform               -> a session that is not refreshed
#                                                access token of this gateway      -> a scoped token of its session,
#                                                                                     or a JWT (`JwtRequests`)
#     GET /auth/<name>, Authorization: Bearer    token of a platform               -> as above

ID_TOKEN = "urn:ietf:params:oauth:token-type:id_token"  # noqa: S105  # no password
SUBJECT_TYPES = frozenset((JWT, ID_TOKEN, ACCESS_TOKEN))
REFUSALS_PER_MINUTE = 60.0
# Scoped tokens of one user in all sessions together. Each is a row in the store.
MINTS_PER_MINUTE = 60.0
SHORTEST = timedelta(seconds=1)
_REPEATABLE = frozenset(("audience", "resource"))


class BadExchange(Exception):
    """A token exchange request that cannot be granted. `error` is the code of RFC 6749 or RFC 8693."""

    def __init__(self, error: str, description: str) -> None:
        super().__init__(description)
        self.error = error


@dataclass(frozen=True, slots=True)
class ExchangeRequest:
    """A parsed token exchange. `scope` and `actor` restrict the new token, `lifetime` shortens it."""

    subject: Secret
    scope: str = ""
    actor: str = ""
    lifetime: timedelta | None = None


def read_exchange(request: LoginRequest, *, external_url: str) -> ExchangeRequest:
    """Parse the form of a token exchange. Raises `BadExchange`."""
    # Count empty parameters too: an empty scope beside a second one would discard both and yield an unscoped token.
    names = [name for name, _ in request.form]
    if any(name in ("subject_token", "actor_token") for name, _ in request.query):
        raise BadExchange("invalid_request", "a token in the address of a request is written into logs: use the form")
    if any(name in LESS for name, _ in request.query):
        raise BadExchange("invalid_request", "what makes a token less is read from the form, and not from the address")
    if repeated := {name for name in names if names.count(name) > 1} - _REPEATABLE:
        raise BadExchange("invalid_request", f"{min(repeated)} is given twice")
    form = {name: only(request.form, name) or "" for name, value in request.form if value}
    if form.get("grant_type") != GRANT:
        error = "unsupported_grant_type" if "grant_type" in form else "invalid_request"
        raise BadExchange(error, f"grant_type must be {GRANT}, in a form")
    if "subject_token" not in form or form.get("subject_token_type") not in SUBJECT_TYPES:
        raise BadExchange("invalid_request", "subject_token is missing, or its subject_token_type is not known")
    if "actor_token" in form or "actor_token_type" in form:
        raise BadExchange("invalid_request", "actor_token is not supported: name the actor with actor, beside a scope")
    if form.get("requested_token_type", ACCESS_TOKEN) != ACCESS_TOKEN:
        raise BadExchange("invalid_request", f"requested_token_type must be {ACCESS_TOKEN}")
    if any(value.rstrip("/") != external_url for name, value in request.form if name in _REPEATABLE and value):
        raise BadExchange("invalid_target", "tokens of this gateway are for itself: leave out audience and resource")
    return ExchangeRequest(Secret(form["subject_token"]), form.get("scope", ""), form.get("actor", ""), _lifetime(form))


def _lifetime(form: Mapping[str, str]) -> timedelta | None:
    text = form.get("expires_in")
    if text is None:
        return None
    if not text.isascii() or not text.isdecimal() or not 0 < len(text) < 9 or int(text) == 0:
        raise BadExchange("invalid_request", "expires_in is not a number of seconds")
    return timedelta(seconds=int(text))


class TokenExchanger:
    """Exchange a platform's token for a session, and an access token of this gateway for a scoped one.

    `scope` restricts the new token. For a subject token that is already scoped, it can only restrict further. Denials
    are counted per client address, and an address with too many of them gets 429; successful exchanges are not limited
    this way. One instance serves one event loop.
    """

    def __init__(
        self,
        identity: Mapping[str, Identity],
        tokens: Tokens,
        *,
        providers: IdentityService,
        jwts: JwtRequests,
        find_token: FindToken,
        used: UsedTokens | None,
        events: LoginEvents,
        external_url: str,
        clock: Clock,
        counts: ImmediateCounts | None = None,
    ) -> None:
        self._verifying = {
            name: (each, instance)
            for name, each in identity.items()
            if (instance := ability(each.instance, VerifiesTokens)) is not None
        }
        self._tokens = tokens
        self._find_token = find_token
        self._used = used
        self._providers = providers
        self._jwts = jwts
        self._events = events
        self._external_url = external_url
        self._clock = clock
        refusals, mints = REFUSALS_PER_MINUTE, MINTS_PER_MINUTE
        self._refusals = Buckets(refusals / 60, refusals, clock=clock, counts=counts, name="token exchanges")
        self._mints = Buckets(mints / 60, mints, clock=clock, counts=counts, name="narrowed tokens")

    async def exchange(self, request: LoginRequest) -> LoginAnswer:
        """Respond to ``POST /auth/token``."""
        if wait := self._refusals.empty_for(network(request.remote_address)):
            return answers.too_many(wait)
        if field(request, "requested_token_type") == JWT:
            answer = await self._jwts.exchange(request)
            if answer.status == 400:
                self._refusals.take(network(request.remote_address))
            return answer
        try:
            exchange = read_exchange(request, external_url=self._external_url)
        except BadExchange as mistake:
            refusal = LoginRefused("the token exchange is not possible", cause=str(mistake))
            return self._events.record_refusal(refusal, request, answers.grant_refusal(mistake.error, str(mistake)))
        if well_formed(as_bytes(exchange.subject.reveal())):
            return await self._narrow(request, exchange)
        try:
            provider = self._provider_for(exchange.subject)
        except LoginRefused as refusal:
            return self._refuse(refusal, request, _refused_grant(refusal))
        return await self._exchange_with(provider, request, exchange)

    def accepts(self, provider: Identity) -> bool:
        """Report whether *provider* verifies tokens, so that a bearer token at its path is for `sign_in`."""
        return provider.name in self._verifying

    async def sign_in(self, provider: Identity, token: str, request: LoginRequest) -> LoginAnswer:
        """Respond to ``/auth/<name>`` with a bearer token."""
        if wait := self._refusals.empty_for(network(request.remote_address)):
            return answers.too_many(wait)
        if any(name in LESS for name, _ in (*request.query, *request.form)):
            refusal = LoginRefused(
                "a token that is less is made at /auth/token", cause="a scope or an actor was asked for"
            )
            return self._events.record_refusal(refusal, request, answers.refusal(refusal), provider.name)
        try:
            return answers.program_token(await self._issue(provider, request, ExchangeRequest(Secret(token)), None))
        except LoginRefused as refusal:
            return self._refuse(refusal, request, answers.refusal(refusal), provider.name)
        except Exception as error:
            return self._events.record_failure(error, request, provider.name)

    # --- the token of a platform ---

    def _provider_for(self, subject: Secret) -> Identity:
        verifying = list(self._verifying.values())
        for identity, instance in verifying:
            # A single verifying provider checks every token, and reports what is wrong with it.
            if len(verifying) == 1 or instance.recognizes_token(subject.reveal()):
                return identity
        raise LoginRefused("the token is not accepted", cause="no identity provider accepts tokens of its issuer")

    async def _exchange_with(self, provider: Identity, request: LoginRequest, exchange: ExchangeRequest) -> LoginAnswer:
        try:
            delegation = _delegation(None, exchange)
            issued = await self._issue(provider, request, exchange, delegation)
        except ScopeError as mistake:
            return self._refuse(mistake, request, _refused_scope(mistake), provider.name)
        except LoginRefused as refusal:
            return self._refuse(refusal, request, _refused_grant(refusal), provider.name)
        except Exception as error:
            return self._events.record_failure(error, request, provider.name, instead=_outage(error))
        return self._answer(issued, delegation)

    async def _issue(
        self, provider: Identity, request: LoginRequest, exchange: ExchangeRequest, delegation: Delegation | None
    ) -> IssuedToken:
        # Read before the provider is queried: a revocation from this moment on also ends the token issued below.
        at, sequence = self._clock.now(), await self._tokens.sequence()
        signed_in, verified = await self._providers.verify(*self._verifying[provider.name], exchange.subject, request)
        lifetime = min(self._time_left(verified.expires_at, exchange), self._tokens.lifetime)
        username = signed_in.attested.user.username
        # Checked before the token is marked as used: a denied exchange must not consume it.
        await self._tokens.check_limit(username)
        await self._use_up(provider, verified, username)
        issued = await self._tokens.issue_token(
            signed_in.attested.user,
            provider=signed_in.provider,
            sources=signed_in.attested.sources,
            client=client_text(request),
            lifetime=lifetime,
            delegation="" if delegation is None else delegation.encode(),
            at=at,
            sequence=sequence,
        )
        self._events.record_session(LoginEventKind.ISSUED, request, issued.session)
        return issued

    def _time_left(self, expires_at: datetime, exchange: ExchangeRequest) -> timedelta:
        """Return the lifetime of a token issued for one that expires at *expires_at*: never longer than the original.

        Otherwise a client could keep access for the whole session by exchanging each token for the next.
        """
        left = expires_at - self._clock.now()
        lifetime = min(left, exchange.lifetime or left)
        if lifetime < SHORTEST:
            raise LoginRefused("the token is not accepted", cause="it expires this very moment")
        return lifetime

    async def _use_up(self, provider: Identity, verified: VerifiedToken, username: str) -> None:
        """Mark a single-use token as used. Raises `LoginRefused` if it was used before."""
        if verified.once_until is None:
            return
        if self._used is None:
            raise ProviderError(
                "tokens that are good once cannot be accepted",
                cause="the token store keeps no objects, so nobody knows which were used",
                hint="use another token store, or leave out once",
            )
        if not await self._used.use_up(provider.name, verified.token_id, until=verified.once_until, username=username):
            raise LoginRefused("this token was used before: get a new one", cause="it is accepted once only (once)")

    # --- access tokens of this gateway ---

    async def _narrow(self, request: LoginRequest, exchange: ExchangeRequest) -> LoginAnswer:
        try:
            entry = await self._find_token(exchange.subject.reveal())
            if entry is None:
                raise LoginRefused("the token is unknown, expired or revoked", cause="so says the token store")
            delegation = self._narrower(entry, exchange)
            if wait := self._mints.take(entry.session.user.username):
                return answers.too_many(wait)
            lifetime = self._time_left(entry.token.expires_at, exchange)
            issued = await self._tokens.mint(entry.session, lifetime=lifetime, delegation=delegation.encode())
        except ScopeError as mistake:
            return self._refuse(mistake, request, _refused_scope(mistake))
        except LoginRefused as refusal:
            return self._refuse(refusal, request, _refused_grant(refusal))
        except Exception as error:
            return self._events.record_failure(error, request, instead=_outage(error))
        self._events.record_session(LoginEventKind.ISSUED, request, issued.session, reason=f"narrowed to {delegation}")
        return self._answer(issued, delegation)

    def _narrower(self, entry: Found, exchange: ExchangeRequest) -> Delegation:
        if not exchange.scope:
            raise ScopeError(
                "the scope is missing", cause="a token of this gateway can only be exchanged for one that is less"
            )
        parent = decode(entry.token.delegation) if entry.token.delegation else None
        delegation = _delegation(parent, exchange)
        assert delegation is not None
        return delegation

    # --- responses ---

    def _answer(self, issued: IssuedToken, delegation: Delegation | None) -> LoginAnswer:
        seconds = int((issued.expires_at - self._clock.now()).total_seconds())
        return answers.exchange_answer(issued, seconds=seconds, scope="" if delegation is None else str(delegation))

    def _refuse(
        self, error: LoginRefused | ScopeError, request: LoginRequest, answer: LoginAnswer, provider: str = ""
    ) -> LoginAnswer:
        self._refusals.take(network(request.remote_address))
        return self._events.record_refusal(error, request, answer, provider)


def _delegation(parent: Delegation | None, exchange: ExchangeRequest) -> Delegation | None:
    """Return the scope of the new token, or None for an unscoped one. Raises `ScopeError`."""
    if not exchange.scope:
        if exchange.actor:
            raise ScopeError("the scope is missing", cause="an actor is named for a token that is less than its owner")
        return parent
    return (parent or Delegation(())).narrow(parse_scope(exchange.scope), exchange.actor)


def _refused_grant(refusal: LoginRefused) -> LoginAnswer:
    if refusal.retry_after:
        return answers.refusal(refusal)
    # RFC 8693, section 2.2.2: invalid_request also covers an unacceptable subject token.
    return answers.grant_refusal("invalid_request", refusal.summary)


def _refused_scope(mistake: ScopeError) -> LoginAnswer:
    return answers.grant_refusal("invalid_scope", ": ".join(filter(None, (mistake.summary, mistake.cause))))


def _outage(error: Exception) -> LoginAnswer:
    """Response for an identity provider that could not be queried, which is not a denial."""
    is_known = isinstance(error, (ProviderError, OSError)) and not isinstance(error, ContractBroken)
    status = 503 if is_known else 500
    return answers.grant_refusal("temporarily_unavailable", "the identity provider is unavailable", status=status)
