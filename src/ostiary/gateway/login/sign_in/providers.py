"""Asking the providers: who is it, which groups, and is that still so.

    visit             handle_client           -> a user | elsewhere | a challenge
    finish_identity   handle_provider         -> a user | elsewhere
    finish_groups     groups_from_provider    -> a user | elsewhere
    a user            -> groups, the relevant ones only    -> `SignedIn` | elsewhere
    recheck           at a renewal: is all that still so

Called by the sign-in routes and at renewals. An answer that breaks the contract is an error of the provider, and nobody
is signed in by it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TypeVar
from urllib.parse import urlsplit

from ostiary.core.abilities import ability, has_trait
from ostiary.core.clock import Clock
from ostiary.core.tokens import Attested
from ostiary.errors import LoginRefused, OstiaryError
from ostiary.gateway.config.settings import Identity
from ostiary.gateway.http1.headers import BadHeader, HeaderNames
from ostiary.gateway.login.cookies import without_ours
from ostiary.gateway.login.records import Records
from ostiary.gateway.login.sign_in.flows import Flow, Goal, state_of
from ostiary.gateway.login.sign_in.groups import SYSTEM, Away, ContractBroken, GroupChecks, ProviderUser, attest
from ostiary.gateway.upstream.identity_headers import identity_lines
from ostiary.interfaces.group import Membership
from ostiary.interfaces.identity import (
    AsksAgain,
    Challenge,
    Identified,
    LoginRequest,
    Redirect,
    ReturnsByPost,
    Revalidates,
)
from ostiary.interfaces.token_store import RecordStore, Session
from ostiary.model import Secret, UserInfo

T = TypeVar("T")
_ENDED = "this session has expired or was revoked: sign in again"


@dataclass(frozen=True, slots=True)
class SignedIn:
    """Identity and groups are known. Only now may there be a token."""

    provider: str
    attested: Attested


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """The browser goes to `url`, and `flow` is to be remembered until it returns."""

    url: str
    flow: Flow


Outcome = SignedIn | Elsewhere | Challenge


class ProviderCalls:
    def __init__(
        self,
        identity: Mapping[str, Identity],
        checks: GroupChecks,
        store: RecordStore,
        *,
        external_url: str,
        provider_seconds: float,
        clock: Clock,
    ) -> None:
        self._identity = identity
        self._checks = checks
        self._external_url = external_url
        self._seconds = provider_seconds
        self._asking = Records(store, "asking again", timedelta(seconds=2 * provider_seconds), clock=clock)

    async def visit(self, provider: Identity, request: LoginRequest, goal: Goal) -> Outcome:
        request = self._prepare(provider, request)
        answer: object = await self._within(provider.instance.handle_client(request))
        if isinstance(answer, Challenge):
            return Challenge(_header_value(provider, answer.www_authenticate))
        if isinstance(answer, Redirect):
            away = _elsewhere(answer, Flow(provider.name, goal=goal))
            if returns_by_post(provider) and not away.flow.state:
                raise _broken(provider, f"it returns by POST, and its redirect has no {answer.state_name}")
            return away
        return await self._ask_groups(provider, _identity_of(provider, answer), request, goal)

    async def finish_identity(self, provider: Identity, request: LoginRequest, flow: Flow | None) -> Outcome:
        begun_here = flow is not None and flow.identity == provider.name and flow.user is None
        remembered = flow.remember if flow is not None and begun_here else ()
        shown_request = replace(self._prepare(provider, request), remembered=remembered)
        # The provider sees every return, even one that this browser did not begin.
        answer: object = await self._within(provider.instance.handle_provider(shown_request))
        identified = _identity_of(provider, answer)
        if flow is None or not begun_here:
            raise _unknown_flow()
        return await self._ask_groups(provider, identified, shown_request, flow.goal)

    async def finish_groups(self, provider: Identity, request: LoginRequest, flow: Flow | None) -> Outcome:
        if flow is None or flow.identity != provider.name or flow.user is None:
            raise _unknown_flow()
        provider_user = _provider_user(provider, flow.user)
        shown_request = replace(self._prepare(provider, request, groups=True), remembered=flow.remember)
        with _about(provider_user.user.username):
            memberships = await self._within(
                self._checks.ask(
                    provider_user, shown_request, position=flow.position, memberships=flow.memberships, returning=True
                )
            )
            return _outcome_of(provider_user, memberships, flow.goal, flow.kept)

    async def recheck(self, session: Session, request: LoginRequest, kept: Secret | None = None) -> Attested:
        """Who the session's user is today. Raises `LoginRefused` if nobody any more.

        *kept* is what the identity provider keeps for this session.
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
            own = _user_of(provider, await self._within(revalidating.revalidate(own)))
        provider_user = _provider_user(provider, own)
        # The providers do not see the token. After `ask_again` the request looks as at a sign-in.
        headers = tuple(header for header in request.headers if header[0] != "authorization")
        path = request.path if before is not None else "/auth"
        shown_request = without_ours(replace(request, path=path, form=(), headers=headers))
        memberships = await self._within(self._checks.ask(provider_user, shown_request, before=before))
        if isinstance(memberships, Away):
            raise LoginRefused(_ENDED, cause="groups cannot be looked up without an interactive sign-in")
        return _with_groups(provider_user, memberships, refreshed)

    async def _ask_again(
        self, instance: AsksAgain, provider: Identity, session: Session, own: UserInfo, kept: Secret
    ) -> tuple[UserInfo, Secret]:
        # Two workers must not use one refresh token: the issuer would take the second use for theft.
        if not await self._asking.put(session.id, {}):
            summary = "this session is being refreshed: try again in a moment"
            raise LoginRefused(summary, cause="another program with the same session is refreshing it", retry_after=1.0)
        try:
            identified: object = await self._within(instance.ask_again(own, kept))
        finally:
            await self._asking.take(session.id)
        if not isinstance(identified, Identified):
            raise _broken(provider, f"it answered with {type(identified).__name__}, instead of a user")
        return _identity_of(provider, identified).user, identified.kept

    async def _ask_groups(
        self, provider: Identity, identified: _IdentifiedUser, request: LoginRequest, goal: Goal
    ) -> Outcome:
        provider_user = _provider_user(provider, identified.user)
        # Groups return to a path of their own, and do not see what the identity provider asked to remember.
        request = replace(request, callback_url=self._callback(provider, groups=True), remembered=())
        with _about(provider_user.user.username):
            return _outcome_of(
                provider_user, await self._within(self._checks.ask(provider_user, request)), goal, identified.kept
            )

    def _prepare(self, provider: Identity, request: LoginRequest, *, groups: bool = False) -> LoginRequest:
        """*request* as a provider may see it, with the URL that the browser comes back to."""
        return replace(without_ours(request), callback_url=self._callback(provider, groups=groups))

    def _callback(self, provider: Identity, *, groups: bool) -> str:
        name = f"/{provider.name}" if len(self._identity) > 1 else ""
        return f"{self._external_url}/auth{name}{'/groups' if groups else ''}/provider"

    async def _within(self, asking: Awaitable[T]) -> T:
        async with asyncio.timeout(self._seconds):
            return await asking


def returns_by_post(provider: Identity) -> bool:
    """Whether browsers come back to *provider* with a form of the identity system's page."""
    return has_trait(provider.instance, ReturnsByPost)


@contextmanager
def _about(username: str) -> Iterator[None]:
    """Errors raised inside name this user in the operator's log."""
    try:
        yield
    except OstiaryError as error:
        error.username = username
        raise


def _outcome_of(
    provider_user: ProviderUser, result: tuple[Membership, ...] | Away, goal: Goal, kept: Secret | None
) -> Outcome:
    if isinstance(result, Away):
        position, memberships = result.position, result.memberships
        flow = Flow(
            provider_user.identity,
            user=provider_user.own,
            position=position,
            memberships=memberships,
            goal=goal,
            kept=kept,
        )
        return _elsewhere(result.redirect, flow)
    return SignedIn(provider_user.identity, _with_groups(provider_user, result, kept))


def _with_groups(provider_user: ProviderUser, memberships: Sequence[Membership], kept: Secret | None) -> Attested:
    """What a token may attest. Names that no header can carry are refused now, while the person can be told."""
    user, sources = attest(provider_user.user, memberships)
    extra = (value for _, values in user.extra for value in values)
    for name in (user.username, *filter(None, (user.uid,)), *user.groups, *extra):
        try:
            identity_lines(UserInfo(name), HeaderNames())
        except BadHeader as error:
            summary = (
                "your user name or one of your group names cannot be used here: ask the administrator of this gateway"
            )
            raise LoginRefused(summary, cause=f'"{provider_user.identity}" knows {name!a}: {error}') from None
    return Attested(user, sources, kept)


def _elsewhere(redirect: Redirect, flow: Flow) -> Elsewhere:
    """Checks a redirect: it must lead to a web page. The state that must come back is taken from its URL."""
    url: object = redirect.url
    try:
        good = isinstance(url, str) and url.isascii() and url.isprintable() and " " not in url
        parts = urlsplit(redirect.url) if good else None
    except ValueError:
        parts = None
    if parts is None or parts.scheme not in ("http", "https") or not parts.hostname:
        cause = "its redirect is not an http or https URL"
        raise ContractBroken(f'the provider "{flow.identity}" breaks its contract', cause=cause)
    remember = _checked_pairs(redirect.remember, flow.identity)
    name: object = redirect.state_name
    if not isinstance(name, str) or not name:
        raise ContractBroken(f'the provider "{flow.identity}" breaks its contract', cause="its state has no name")
    state = state_of(redirect.url, name)
    return Elsewhere(redirect.url, replace(flow, state=state, state_name=name, remember=remember))


def _checked_pairs(value: object, provider: str) -> tuple[tuple[str, str], ...]:
    if isinstance(value, (tuple, list)) and all(_is_pair(item) for item in value):
        return tuple((key, text) for key, text in value)
    summary = f'the provider "{provider}" breaks its contract'
    raise ContractBroken(summary, cause="the values to remember are not pairs of strings")


def _is_pair(item: object) -> bool:
    return isinstance(item, (tuple, list)) and len(item) == 2 and all(isinstance(part, str) for part in item)


@dataclass(frozen=True, slots=True)
class _IdentifiedUser:
    """The user whom a provider has identified, and what it keeps for the session, if anything."""

    user: UserInfo
    kept: Secret | None


def _identity_of(provider: Identity, answer: object) -> _IdentifiedUser:
    if not isinstance(answer, Identified):
        return _IdentifiedUser(_user_of(provider, answer), None)
    if not isinstance(answer.kept, Secret) or ability(provider.instance, AsksAgain) is None:
        raise _broken(provider, "it returned a value to keep that is not a Secret, or that it cannot use for a refresh")
    return _IdentifiedUser(_user_of(provider, answer.user), answer.kept)


def _user_of(provider: Identity, answer: object) -> UserInfo:
    """The user that *answer* is. Anything but one complete user breaks the contract."""
    if not isinstance(answer, UserInfo):
        raise _broken(provider, f"it answered with {type(answer).__name__}, instead of a user")
    texts = (answer.username, answer.uid, *answer.groups)
    if not all(isinstance(text, str) for text in texts) or answer.username == "":
        raise _broken(provider, "it returned a user without a name, or a field that is not a string")
    return answer


def _provider_user(provider: Identity, own: UserInfo) -> ProviderUser:
    username = provider.prefix + own.username
    if username.startswith(SYSTEM):
        raise LoginRefused("this name is reserved", cause=f'"{provider.name}" returned a reserved system name')
    return ProviderUser(provider.name, own, replace(own, username=username))


def _header_value(provider: Identity, text: object) -> str:
    if not isinstance(text, str) or not text or not text.isprintable() or not text.isascii():
        raise _broken(provider, "its challenge is not a valid header")
    return text


def _broken(provider: Identity, cause: str) -> ContractBroken:
    return ContractBroken(f'the identity provider "{provider.name}" breaks its contract', cause=cause)


def _unknown_flow() -> LoginRefused:
    return LoginRefused("this sign-in did not start in this browser, or has expired: start again", cause="no such flow")
