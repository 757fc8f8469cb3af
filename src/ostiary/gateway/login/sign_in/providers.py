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
from ostiary.gateway.login.sign_in.groups import SYSTEM, Away, ContractBroken, GroupChecks, Signed, attest
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
        said: object = await self._within(provider.instance.handle_client(request))
        if isinstance(said, Challenge):
            return Challenge(_header_value(provider, said.www_authenticate))
        if isinstance(said, Redirect):
            away = _elsewhere(said, Flow(provider.name, goal=goal))
            if returns_by_post(provider) and not away.flow.state:
                raise _broken(provider, f"it returns by POST, and its redirect has no {said.state_name}")
            return away
        return await self._identified(provider, _identified_by(provider, said), request, goal)

    async def finish_identity(self, provider: Identity, request: LoginRequest, flow: Flow | None) -> Outcome:
        good = flow is not None and flow.identity == provider.name and flow.user is None
        remembered = flow.remember if flow is not None and good else ()
        shown = replace(self._prepare(provider, request), remembered=remembered)
        # The provider sees every return, also those that nobody in this browser began.
        said: object = await self._within(provider.instance.handle_provider(shown))
        identified = _identified_by(provider, said)
        if flow is None or not good:
            raise _not_begun_here()
        return await self._identified(provider, identified, shown, flow.goal)

    async def finish_groups(self, provider: Identity, request: LoginRequest, flow: Flow | None) -> Outcome:
        if flow is None or flow.identity != provider.name or flow.user is None:
            raise _not_begun_here()
        signed = _signed(provider, flow.user)
        shown = replace(self._prepare(provider, request, groups=True), remembered=flow.remember)
        with _about(signed.user.username):
            found = await self._within(
                self._checks.ask(signed, shown, position=flow.position, memberships=flow.memberships, returning=True)
            )
            return _attested(signed, found, flow.goal, flow.kept)

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
        own = replace(session.user, username=session.user.username[len(provider.prefix) :], groups=())
        before: tuple[tuple[str, str], ...] | None = session.sources
        asking, revalidating = ability(provider.instance, AsksAgain), ability(provider.instance, Revalidates)
        if kept is not None and asking is not None:
            own, kept = await self._ask_again(asking, provider, session, own, kept)
            before = None
        elif revalidating is not None:
            own = _user_of(provider, await self._within(revalidating.revalidate(own)))
        signed = _signed(provider, own)
        # What the providers see of it has no token in it. Where everything is told anew, it is as at a sign-in.
        headers = tuple(header for header in request.headers if header[0] != "authorization")
        path = request.path if before is not None else "/auth"
        shown = without_ours(replace(request, path=path, form=(), headers=headers))
        found = await self._within(self._checks.ask(signed, shown, before=before))
        if isinstance(found, Away):
            raise LoginRefused(_ENDED, cause="groups cannot be looked up without an interactive sign-in")
        return _with_groups(signed, found, kept)

    async def _ask_again(
        self, instance: AsksAgain, provider: Identity, session: Session, own: UserInfo, kept: Secret
    ) -> tuple[UserInfo, Secret]:
        # Two programs at two workers must not use one refresh token: the issuer would take the second for a thief.
        if not await self._asking.put(session.id, {}):
            summary = "this session is being refreshed: try again in a moment"
            raise LoginRefused(summary, cause="another program with the same session is refreshing it", retry_after=1.0)
        try:
            identified: object = await self._within(instance.ask_again(own, kept))
        finally:
            await self._asking.take(session.id)
        if not isinstance(identified, Identified):
            raise _broken(provider, f"it answered with {type(identified).__name__}, instead of a user")
        return _identified_by(provider, identified).user, identified.kept

    async def _identified(self, provider: Identity, identified: _Known, request: LoginRequest, goal: Goal) -> Outcome:
        signed = _signed(provider, identified.user)
        # Groups return to a path of their own, and what identity asked to remember is none of their business.
        request = replace(request, callback_url=self._callback(provider, groups=True), remembered=())
        with _about(signed.user.username):
            return _attested(signed, await self._within(self._checks.ask(signed, request)), goal, identified.kept)

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
    """What goes wrong inside is about this user: the operator's log says so."""
    try:
        yield
    except OstiaryError as error:
        error.username = username
        raise


def _attested(signed: Signed, found: tuple[Membership, ...] | Away, goal: Goal, kept: Secret | None) -> Outcome:
    if isinstance(found, Away):
        position, memberships = found.position, found.memberships
        flow = Flow(signed.identity, user=signed.own, position=position, memberships=memberships, goal=goal, kept=kept)
        return _elsewhere(found.redirect, flow)
    return SignedIn(signed.identity, _with_groups(signed, found, kept))


def _with_groups(signed: Signed, memberships: Sequence[Membership], kept: Secret | None) -> Attested:
    """What a token may attest: upstreams are told of it in headers, and found out now it is told to the person."""
    user, sources = attest(signed.user, memberships)
    extra = (value for _, values in user.extra for value in values)
    for name in (user.username, *filter(None, (user.uid,)), *user.groups, *extra):
        try:
            identity_lines(UserInfo(name), HeaderNames())
        except BadHeader as error:
            summary = (
                "your user name or one of your group names cannot be used here: ask the administrator of this gateway"
            )
            raise LoginRefused(summary, cause=f'"{signed.identity}" knows {name!a}: {error}') from None
    return Attested(user, sources, kept)


def _elsewhere(redirect: Redirect, flow: Flow) -> Elsewhere:
    """A provider may only send people to a page on the web; the state that must come back is the URL's."""
    url: object = redirect.url
    try:
        good = isinstance(url, str) and url.isascii() and url.isprintable() and " " not in url
        parts = urlsplit(redirect.url) if good else None
    except ValueError:
        parts = None
    if parts is None or parts.scheme not in ("http", "https") or not parts.hostname:
        cause = "its redirect is not an http or https URL"
        raise ContractBroken(f'the provider "{flow.identity}" breaks its contract', cause=cause)
    remember = _remembered(redirect.remember, flow.identity)
    name: object = redirect.state_name
    if not isinstance(name, str) or not name:
        raise ContractBroken(f'the provider "{flow.identity}" breaks its contract', cause="its state has no name")
    state = state_of(redirect.url, name)
    return Elsewhere(redirect.url, replace(flow, state=state, state_name=name, remember=remember))


def _remembered(value: object, provider: str) -> tuple[tuple[str, str], ...]:
    if isinstance(value, (tuple, list)) and all(_is_pair(item) for item in value):
        return tuple((key, text) for key, text in value)
    summary = f'the provider "{provider}" breaks its contract'
    raise ContractBroken(summary, cause="the values to remember are not pairs of strings")


def _is_pair(item: object) -> bool:
    return isinstance(item, (tuple, list)) and len(item) == 2 and all(isinstance(part, str) for part in item)


@dataclass(frozen=True, slots=True)
class _Known:
    """Whom a provider has identified, and what it keeps for the session, if anything."""

    user: UserInfo
    kept: Secret | None


def _identified_by(provider: Identity, said: object) -> _Known:
    if not isinstance(said, Identified):
        return _Known(_user_of(provider, said), None)
    if not isinstance(said.kept, Secret) or ability(provider.instance, AsksAgain) is None:
        raise _broken(provider, "it returned a value to keep that is not a Secret, or that it cannot use for a refresh")
    return _Known(_user_of(provider, said.user), said.kept)


def _user_of(provider: Identity, said: object) -> UserInfo:
    """Exactly one answer, and a whole one; anything else is the provider's mistake."""
    if not isinstance(said, UserInfo):
        raise _broken(provider, f"it answered with {type(said).__name__}, instead of a user")
    texts = (said.username, said.uid, *said.groups)
    if not all(isinstance(text, str) for text in texts) or said.username == "":
        raise _broken(provider, "it returned a user without a name, or a field that is not a string")
    return said


def _signed(provider: Identity, own: UserInfo) -> Signed:
    username = provider.prefix + own.username
    if username.startswith(SYSTEM):
        raise LoginRefused("this name is reserved", cause=f'"{provider.name}" returned a reserved system name')
    return Signed(provider.name, own, replace(own, username=username))


def _header_value(provider: Identity, text: object) -> str:
    if not isinstance(text, str) or not text or not text.isprintable() or not text.isascii():
        raise _broken(provider, "its challenge is not a valid header")
    return text


def _broken(provider: Identity, cause: str) -> ContractBroken:
    return ContractBroken(f'the identity provider "{provider.name}" breaks its contract', cause=cause)


def _not_begun_here() -> LoginRefused:
    return LoginRefused("this sign-in did not start in this browser, or has expired: start again", cause="no such flow")
