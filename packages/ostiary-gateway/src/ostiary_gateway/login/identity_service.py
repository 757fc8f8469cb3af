"""Calls to the identity and group providers during sign-in and session refresh.

    visit             handle_client           -> a user | elsewhere | a challenge
    finish_identity   handle_provider         -> a user | elsewhere
    finish_groups     groups_from_provider    -> a user | elsewhere
    a user            -> groups, the relevant ones only    -> `SignedIn` | elsewhere
    recheck           at a session refresh: does all of this still hold

A result that breaks the provider contract counts as an error of the provider and signs no user in.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TypeVar

from ostiary.core.clock import Clock
from ostiary.errors import LoginRefused, OstiaryError, ProviderError
from ostiary.model import Secret, UserInfo
from ostiary_gateway.capabilities import ability, has_trait
from ostiary_gateway.config.provider import Identity
from ostiary_gateway.http1.headers import BadHeader, HeaderNames
from ostiary_gateway.interfaces.group import Membership
from ostiary_gateway.interfaces.identity import (
    AsksAgain,
    Challenge,
    Identified,
    LoginRequest,
    PostedForm,
    PublishedDocument,
    PublishesMetadata,
    Redirect,
    RequiredAuthentication,
    ReturnsByPost,
    Revalidates,
    SignIn,
    TellsSignIn,
    VerifiedToken,
    VerifiesTokens,
)
from ostiary_gateway.interfaces.token_store import RecordStore, Session
from ostiary_gateway.login.cookies import without_ours
from ostiary_gateway.login.groups import Away, ContractBroken, GroupChecks, ProviderUser, attest
from ostiary_gateway.login.login_transactions import Flow, ReturnTo, state_of
from ostiary_gateway.login.provider_contract import (
    IdentifiedUser,
    account_groups,
    checked_pairs,
    checked_url,
    contract_broken,
    header_value,
    identity_of,
    provider_user_of,
    user_of,
)
from ostiary_gateway.login.records import Records
from ostiary_gateway.login.replay_cache import UsedTokens
from ostiary_gateway.login.required import check_required
from ostiary_gateway.observability.tracing import traced_step
from ostiary_gateway.proxy.identity_headers import identity_lines
from ostiary_gateway.sessions import Attested
from ostiary_gateway.sessions.authentication_context import with_latest_context

T = TypeVar("T")
_ENDED = "this session has expired or was revoked: sign in again"


@dataclass(frozen=True, slots=True)
class SignedIn:
    """A completed sign-in: identity and groups are verified, so a token may be issued.

    `sequence` is the number of the last revocation before the provider was queried: a later revocation also ends this
    sign-in. `www_authenticate` is sent with the response: it proves the gateway's identity to a client that requested
    mutual authentication.
    """

    provider: str
    attested: Attested
    sequence: int | None = None
    www_authenticate: str = ""


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """A redirect to `url`, by POST with `form` if it is set. `flow` is stored until the browser returns."""

    url: str
    flow: Flow
    form: tuple[tuple[str, str], ...] = ()


Outcome = SignedIn | Elsewhere | Challenge


class IdentityService:
    """Call the identity and group providers, with a timeout, and validate what they return."""

    def __init__(
        self,
        identity: Mapping[str, Identity],
        checks: GroupChecks,
        store: RecordStore,
        *,
        last_revocation: Callable[[], Awaitable[int]],
        external_url: str,
        provider_seconds: float,
        used: UsedTokens | None = None,
        clock: Clock,
    ) -> None:
        self._identity = identity
        self._prefixes = tuple(each.prefix for each in identity.values())
        self._used = used
        self._checks = checks
        self._last_revocation = last_revocation
        self._external_url = external_url
        self._seconds = provider_seconds
        self._now = clock.now
        self._asking = Records(store, "asking again", timedelta(seconds=2 * provider_seconds), clock=clock)

    async def visit(self, provider: Identity, request: LoginRequest, goal: ReturnTo) -> Outcome:
        request = replace(self._prepare(provider, request), required=_required(goal))
        sequence = await self._last_revocation()
        answer: object = await self._ask(provider, provider.instance.handle_client(request))
        if isinstance(answer, Challenge):
            return replace(answer, www_authenticate=header_value(provider, answer.www_authenticate))
        if isinstance(answer, (Redirect, PostedForm)):
            away = _elsewhere(answer, Flow(provider.name, goal=goal, sequence=sequence))
            if returns_by_post(provider) and not away.flow.state:
                raise contract_broken(provider, f"it returns by POST, and its redirect has no {answer.state_name}")
            return away
        identified = replace(identity_of(provider, answer), sequence=sequence)
        if isinstance(answer, Identified):
            await self._use_up(provider, answer, identified.user.username)
        outcome = await self._ask_groups(provider, identified, request, goal)
        if isinstance(outcome, SignedIn):
            outcome = replace(outcome, www_authenticate=identified.www_authenticate)
        return outcome

    async def finish_identity(self, provider: Identity, request: LoginRequest, flow: Flow | None) -> Outcome:
        begun_here = flow is not None and flow.identity == provider.name and flow.user is None
        remembered = flow.remember if flow is not None and begun_here else ()
        required = _required(flow.goal) if flow is not None and begun_here else None
        shown_request = replace(self._prepare(provider, request), remembered=remembered, required=required)
        # The provider sees every return, even one that this browser did not start.
        answer: object = await self._ask(provider, provider.instance.handle_provider(shown_request))
        identified = identity_of(provider, answer)
        if flow is None or not begun_here:
            raise _unknown_flow()
        if isinstance(answer, Identified):
            await self._use_up(provider, answer, identified.user.username)
        identified = replace(identified, sequence=flow.sequence)
        return await self._ask_groups(provider, identified, shown_request, flow.goal)

    async def _use_up(self, provider: Identity, identified: Identified, username: str) -> None:
        """Mark a single-use proof as used. Raises `LoginRefused` if it was used before."""
        if identified.once_until is None:
            return
        until, token_id = identified.once_until, identified.token_id
        if not isinstance(token_id, str) or not token_id or until.tzinfo is None:
            raise contract_broken(provider, "it does not say which proof is good once, or until when")
        if self._used is None:
            cause = "the token store keeps no objects, so nobody knows which proofs were used"
            raise ProviderError("the sign-in cannot be completed", cause=cause, hint="use another token store")
        if not await self._used.use_up(provider.name, token_id, until=until, username=username):
            raise LoginRefused(
                "this proof of identity was used before: try again", cause="a replay of a proof that is good once"
            )

    async def metadata(self, provider: Identity, publishing: PublishesMetadata) -> PublishedDocument:
        """Return the document that *provider* publishes about itself."""
        request = LoginRequest("GET", "", callback_url=self._callback(provider, groups=False))
        document: object = await self._ask(provider, publishing.publish_metadata(request))
        if not isinstance(document, PublishedDocument) or not isinstance(document.content, bytes):
            raise contract_broken(provider, f"it answered with {type(document).__name__}, instead of a document")
        return replace(document, media_type=header_value(provider, document.media_type))

    async def finish_groups(self, provider: Identity, request: LoginRequest, flow: Flow | None) -> Outcome:
        if flow is None or flow.identity != provider.name or flow.user is None:
            raise _unknown_flow()
        provider_user = provider_user_of(provider, flow.user, self._prefixes)
        shown_request = replace(self._prepare(provider, request, groups=True), remembered=flow.remember)
        with _about(provider_user.user.username):
            memberships = await self._look_up_groups(
                self._checks.ask(
                    provider_user, shown_request, position=flow.position, memberships=flow.memberships, returning=True
                )
            )
            identified = IdentifiedUser(
                flow.user, flow.kept, flow.origins, flow.sign_out_hint, flow.sequence, flow.until
            )
            return self._outcome_of(provider_user, memberships, flow.goal, identified)

    async def verify(
        self, provider: Identity, verifying: VerifiesTokens, token: Secret, request: LoginRequest
    ) -> tuple[SignedIn, VerifiedToken]:
        """Return the user who presents *token*, issued by a platform. *verifying* is the provider's token verification.

        Raises `LoginRefused` if the token is not accepted.
        """
        verified: object = await self._ask(provider, verifying.verify_token(token))
        if not isinstance(verified, VerifiedToken):
            raise contract_broken(provider, f"it answered with {type(verified).__name__}, instead of a verified token")
        # Do not pass the token to the group providers.
        headers = tuple(header for header in request.headers if header[0] not in ("authorization", "cookie"))
        shown_request = replace(request, form=(), headers=headers, callback_url=self._callback(provider, groups=True))
        identified = IdentifiedUser(user_of(provider, verified.user))
        provider_user = provider_user_of(provider, identified.user, self._prefixes)
        outcome = await self._complete(provider_user, shown_request, None, identified)
        if not isinstance(outcome, SignedIn):
            raise LoginRefused("this token cannot be exchanged", cause="groups cannot be looked up without a browser")
        return outcome, verified

    async def recheck(self, session: Session, request: LoginRequest, kept: Secret | None = None) -> Attested:
        """Return what the providers attest now for the session's user.

        Raises `LoginRefused` if the user may not continue.

        *kept* is the state that the identity provider stored for this session.
        """
        with _about(session.user.username):
            return await self._recheck(session, request, kept)

    async def _recheck(self, session: Session, request: LoginRequest, kept: Secret | None) -> Attested:
        provider = self._identity.get(session.provider)
        if provider is None or not session.user.username.startswith(provider.prefix):
            raise LoginRefused(_ENDED, cause="its identity provider is no longer configured")
        if session.sealed and kept is None:
            raise LoginRefused(_ENDED, cause="the stored state of the identity provider cannot be decrypted")
        refreshed = kept
        own = replace(session.user, username=session.user.username[len(provider.prefix) :], groups=())
        before: tuple[tuple[str, str], ...] | None = session.sources
        asking, revalidating = ability(provider.instance, AsksAgain), ability(provider.instance, Revalidates)
        if kept is not None and asking is not None:
            own, refreshed = await self._ask_again(asking, provider, session, own, kept)
            before = None
        elif revalidating is not None:
            own = user_of(provider, await self._ask(provider, revalidating.revalidate(own)))
        provider_user = provider_user_of(provider, own, self._prefixes)
        # Do not pass the token to the providers. After `ask_again` the request looks like one of a sign-in.
        headers = tuple(header for header in request.headers if header[0] != "authorization")
        path = request.path if before is not None else "/auth"
        shown_request = without_ours(replace(request, path=path, form=(), headers=headers))
        memberships = await self._look_up_groups(self._checks.ask(provider_user, shown_request, before=before))
        if isinstance(memberships, Away):
            raise LoginRefused(_ENDED, cause="groups cannot be looked up without an interactive sign-in")
        attested = _with_groups(provider_user, memberships, refreshed)
        # A refresh is not a sign-in: the authentication context of the last sign-in still applies.
        return replace(attested, user=with_latest_context(attested.user, session.user))

    async def _ask_again(
        self, instance: AsksAgain, provider: Identity, session: Session, own: UserInfo, kept: Secret
    ) -> tuple[UserInfo, Secret | None]:
        # Two workers must not use one refresh token: the issuer would treat the second use as theft.
        if not await self._asking.put(session.id, {}):
            summary = "this session is being refreshed: try again in a moment"
            raise LoginRefused(summary, cause="another program with the same session is refreshing it", retry_after=1.0)
        try:
            identified: object = await self._ask(provider, instance.ask_again(own, kept))
        finally:
            await self._asking.take(session.id)
        if not isinstance(identified, Identified):
            raise contract_broken(provider, f"it answered with {type(identified).__name__}, instead of a user")
        return identity_of(provider, identified).user, identified.kept or kept

    async def _ask_groups(
        self, provider: Identity, identified: IdentifiedUser, request: LoginRequest, goal: ReturnTo
    ) -> Outcome:
        provider_user = provider_user_of(provider, identified.user, self._prefixes)
        # Group providers have their own callback path, and do not see what the identity provider stored in the
        # transaction.
        request = replace(request, callback_url=self._callback(provider, groups=True), remembered=())
        return await self._complete(provider_user, request, goal, identified)

    async def _complete(
        self, provider_user: ProviderUser, request: LoginRequest, goal: ReturnTo, identified: IdentifiedUser
    ) -> Outcome:
        with _about(provider_user.user.username):
            memberships = await self._look_up_groups(self._checks.ask(provider_user, request))
            return self._outcome_of(provider_user, memberships, goal, identified)

    def _outcome_of(
        self,
        provider_user: ProviderUser,
        result: tuple[Membership, ...] | Away,
        goal: ReturnTo,
        identified: IdentifiedUser,
    ) -> Outcome:
        outcome = _outcome_of(provider_user, result, goal, identified)
        if isinstance(outcome, SignedIn):
            # The IdP's statement counts, whatever the provider requested.
            check_required(outcome.attested.user, _required(goal), self._now())
        return outcome

    def _prepare(self, provider: Identity, request: LoginRequest, *, groups: bool = False) -> LoginRequest:
        """Return *request* as a provider may see it, with the callback URL."""
        unnamed = "/auth/groups/provider" if groups else "/auth/provider"
        url = self._callback(provider, groups=groups)
        if request.path == unnamed:
            # The sign-in started with this redirect URI, and the issuer expects the same one with the code (RFC 6749,
            # section 4.1.3). The routes accept it only if it can belong to a single provider.
            url = f"{self._external_url}{unnamed}"
        return replace(without_ours(request), callback_url=url)

    def _callback(self, provider: Identity, *, groups: bool) -> str:
        """Return the callback URL.

        It contains the provider's name, so it stays valid when another provider is added.
        """
        return redirect_uri(self._external_url, provider, groups=groups)

    async def _ask(self, provider: Identity, asking: Awaitable[T]) -> T:
        with traced_step("ask identity provider", provider=provider.name):
            async with asyncio.timeout(self._seconds):
                return await asking

    async def _look_up_groups(self, asking: Awaitable[T]) -> T:
        with traced_step("look up groups"):
            async with asyncio.timeout(self._seconds):
                return await asking


def redirect_uri(external_url: str, provider: Identity, *, groups: bool = False) -> str:
    """Return the redirect URI to register at the issuer."""
    return f"{external_url.rstrip('/')}/auth/{provider.name}{'/groups' if groups else ''}/provider"


def for_people(identity: Mapping[str, Identity]) -> dict[str, Identity]:
    """Return the providers that users can sign in with, without those for workloads only."""
    kinds = {name: ability(each.instance, TellsSignIn) for name, each in identity.items()}
    return {
        name: each
        for name, each in identity.items()
        if (telling := kinds[name]) is None or telling.sign_in is not SignIn.PROGRAM
    }


def returns_by_post(provider: Identity) -> bool:
    """Report whether the IdP returns the browser to *provider* with a form (POST)."""
    return has_trait(provider.instance, ReturnsByPost)


def _required(goal: ReturnTo) -> RequiredAuthentication | None:
    return None if goal is None else goal.required


@contextmanager
def _about(username: str) -> Iterator[None]:
    """Attach *username* to errors raised inside, for the operator's log."""
    try:
        yield
    except OstiaryError as error:
        error.username = username
        raise


def _outcome_of(
    provider_user: ProviderUser, result: tuple[Membership, ...] | Away, goal: ReturnTo, identified: IdentifiedUser
) -> Outcome:
    if isinstance(result, Away):
        position, memberships = result.position, result.memberships
        flow = Flow(
            provider_user.identity,
            user=provider_user.own,
            position=position,
            memberships=memberships,
            goal=goal,
            kept=identified.kept,
            origins=identified.origins,
            sign_out_hint=identified.sign_out_hint,
            sequence=identified.sequence,
            until=identified.until,
        )
        return _elsewhere(result.redirect, flow)
    attested = _with_groups(provider_user, result, identified.kept)
    attested = replace(
        attested, origins=identified.origins, sign_out_hint=identified.sign_out_hint, until=identified.until
    )
    return SignedIn(provider_user.identity, attested, identified.sequence)


def _with_groups(provider_user: ProviderUser, memberships: Sequence[Membership], kept: Secret | None) -> Attested:
    """Return what a token may attest.

    Names that no header can carry are denied here, while the user can still see the reason.
    """
    user, sources = attest(provider_user.user, (*account_groups(provider_user), *memberships))
    extra, headers = (value for _, values in user.extra for value in values), HeaderNames()
    for name in (user.username, *filter(None, (user.uid,)), *user.groups, *extra):
        try:
            identity_lines(UserInfo(name), headers)
        except BadHeader as error:
            summary = (
                "your user name or one of your group names cannot be used here: ask the administrator of this gateway"
            )
            raise LoginRefused(summary, cause=f'"{provider_user.identity}" knows {name!a}: {error}') from None
    return Attested(user, sources, kept)


def _elsewhere(away: Redirect | PostedForm, flow: Flow) -> Elsewhere:
    """Check that a redirect leads to a web page, and read the state that must come back from its URL or form."""
    checked_url(away.url, flow.identity)
    remember = checked_pairs(away.remember, flow.identity)
    name: object = away.state_name
    if not isinstance(name, str) or not name:
        raise ContractBroken(f'the provider "{flow.identity}" breaks its contract', cause="its state has no name")
    form: tuple[tuple[str, str], ...] = ()
    if isinstance(away, PostedForm):
        form = checked_pairs(away.fields, flow.identity)
        state: object = dict(form).get(name)
    else:
        state = away.state or state_of(away.url, name)
    if state is not None and not isinstance(state, str):
        raise ContractBroken(f'the provider "{flow.identity}" breaks its contract', cause="its state is not a text")
    return Elsewhere(away.url, replace(flow, state=state, state_name=name, remember=remember), form)


def _unknown_flow() -> LoginRefused:
    return LoginRefused("this sign-in did not start in this browser, or has expired: start again", cause="no such flow")
