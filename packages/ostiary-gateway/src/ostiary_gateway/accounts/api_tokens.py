"""API tokens: named tokens that a user creates for a workload. Create, list, revoke.

A token is shown once, when it is created. Its owner is the user who created it, with the same name and groups, while
the identity provider confirms the user; or a service account, while it is active (`owner_revalidation`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta

from ostiary.core.account_names import AccountName
from ostiary.model import UserInfo
from ostiary_gateway.accounts.errors import AccountConflict, NotAllowed, NotPossible, UnknownToken
from ostiary_gateway.accounts.service_accounts import PROVIDER, ServiceAccounts, user_of
from ostiary_gateway.accounts.token_rules import Lifetimes, delegation_for
from ostiary_gateway.config.accounts import ApiTokenSettings
from ostiary_gateway.interfaces.token_store import Session, SessionKind
from ostiary_gateway.sessions import IssuedToken, Tokens

MOST_PER_OWNER = 50
LONGEST_NAME = 100
# Separates the creator of a token from its scope in `Session.client`, the description that is shown to its owner.
_SCOPE = "; scope: "


class ApiTokens:
    """Creates, lists and revokes API tokens.

    *is_checked* reports whether the users of the named identity provider can be revalidated.
    """

    def __init__(
        self,
        tokens: Tokens,
        settings: ApiTokenSettings,
        *,
        is_checked: Callable[[str], bool] = lambda provider: False,
    ) -> None:
        self._tokens = tokens
        self._settings = settings
        self._is_checked = is_checked

    @property
    def enabled(self) -> bool:
        return self._settings.enabled

    def lifetimes(self, provider: str) -> Lifetimes:
        settings = self._settings
        longest = settings.longest_lifetime
        if provider != PROVIDER and not self._is_checked(provider):
            longest = min(longest, settings.unchecked_lifetime)
        return Lifetimes(settings.lifetime, longest)

    async def create(
        self,
        owner: Session,
        name: str,
        *,
        lifetime: timedelta | None = None,
        scope: str = "",
        client: str = "",
    ) -> IssuedToken:
        """Create a token for the user of *owner*, which must be a sign-in session.

        With a *scope* it is a scoped token. Raises `ScopeError` for an invalid scope.
        """
        self._check_maker(owner)
        # Read the number first, so that a concurrent revocation also ends the new token.
        sequence = await self._tokens.sequence()
        if await self._tokens.store.session(owner.id) is None:
            raise NotAllowed("your session has ended: sign in again")
        holder = _Holder(owner.user, owner.provider, owner.sources)
        return await self._issue(holder, name, lifetime=lifetime, scope=scope, client=client, sequence=sequence)

    async def create_for_account(
        self,
        maker: Session,
        accounts: ServiceAccounts,
        account: AccountName,
        name: str,
        *,
        lifetime: timedelta | None = None,
        scope: str = "",
        client: str = "",
    ) -> IssuedToken:
        """Like `create`, but for a service account. *maker* is the sign-in session of the caller."""
        self._check_maker(maker)
        sequence = await self._tokens.sequence()
        await accounts.get_active(account)
        holder = _Holder(user_of(account), PROVIDER)
        return await self._issue(holder, name, lifetime=lifetime, scope=scope, client=client, sequence=sequence)

    async def _issue(
        self, holder: _Holder, name: str, *, lifetime: timedelta | None, scope: str, client: str, sequence: int
    ) -> IssuedToken:
        name = checked_token_name(name)
        delegation, scope = delegation_for(scope)
        span = self.lifetimes(holder.provider).resolve(lifetime)
        existing = await self.list(holder.user.username)
        if any(session.name == name for session in existing):
            raise _name_taken(name)
        if len(existing) >= MOST_PER_OWNER:
            raise NotPossible(f"there are {MOST_PER_OWNER} API tokens of this owner already: revoke some first")
        issued = await self._tokens.issue_token(
            holder.user,
            provider=holder.provider,
            sources=holder.sources,
            client=client.replace(_SCOPE, " ") + (f"{_SCOPE}{scope}" if scope else ""),
            name=name,
            lifetime=span,
            delegation=delegation,
            sequence=sequence,
        )
        await self._end_if_second(issued.session)
        return issued

    async def _end_if_second(self, new: Session) -> None:
        """End *new* if another token of the same name was created concurrently, and earlier."""
        same = [each for each in await self.list(new.user.username) if each.name == new.name]
        first = min(same, key=lambda session: (session.created_at, session.id), default=new)
        if first.id != new.id:
            await self._tokens.end_session(new, by="ostiary: a second API token of this name")
            raise _name_taken(new.name)

    async def list(self, username: str) -> list[Session]:
        """Return the live API tokens of a user, newest first."""
        return await self._tokens.store.sessions(
            username=username, kind=SessionKind.API_TOKEN, limit=2 * MOST_PER_OWNER
        )

    async def revoke(self, username: str, name: str, *, by: str) -> Session:
        """End the token of this user with this name or id. Another user's token counts as unknown."""
        for session in await self.list(username):
            if name in (session.name, session.id):
                await self._tokens.end_session(session, by=by)
                return session
        raise UnknownToken()

    def _check_maker(self, maker: Session) -> None:
        """Raise `NotAllowed` unless *maker* is a sign-in session: a stolen workload token must not create others."""
        if not self.enabled:
            raise NotAllowed("API tokens are switched off at this gateway (apiTokens.enabled)")
        if maker.kind is not SessionKind.SIGN_IN:
            raise NotAllowed("an API token is made by somebody who has signed in, and not with the token of a program")


@dataclass(frozen=True, slots=True)
class _Holder:
    """Owner of a token, and the provider that vouches for them."""

    user: UserInfo
    provider: str
    sources: tuple[tuple[str, str], ...] = ()


def _name_taken(name: str) -> AccountConflict:
    return AccountConflict(f'there is an API token called "{name}" already')


def checked_token_name(name: str) -> str:
    """Return *name* without surrounding spaces. Raises `NotPossible` for a name that cannot be displayed or typed."""
    name = name.strip()
    if not name or len(name) > LONGEST_NAME or not name.isprintable() or "/" in name:
        raise NotPossible(f"the name of an API token is 1 to {LONGEST_NAME} characters that can be shown, without a /")
    return name


def scope_of(session: Session) -> str:
    """Return the scope of an API token as its owner wrote it; empty if it is not scoped."""
    return session.client.partition(_SCOPE)[2]


def maker_of(session: Session) -> str:
    """Return the description of the client that created an API token."""
    return session.client.partition(_SCOPE)[0]
