"""API tokens: named tokens that a person makes for a program. Create, list, revoke.

Called by the gateway's own API, the pages and ``ostiary-gateway tokens``. A token is shown once, when it is made. Its
owner is whoever made it, with the same name and groups, as long as the identity provider knows them; or a service
account, as long as that is there (`holder_checks`).
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
# Between what made a token and what it may do, in the text by which its owner recognises it.
_SCOPE = "; scope: "


class ApiTokens:
    """*is_checked* tells of an identity provider, by name, whether its users can be checked again."""

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
        """A token for the user of *owner*, who has signed in.

        With a *scope* it is less than its owner. Raises `ScopeError` for one that cannot be read.
        """
        self._check_maker(owner)
        # First, so that what is revoked from here on ends the new token as well.
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
        """The same for a service account. *maker* is who asks for it, and has signed in."""
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
        """Of two tokens with the same name that were made at the same moment, the later one ends."""
        same = [each for each in await self.list(new.user.username) if each.name == new.name]
        first = min(same, key=lambda session: (session.created_at, session.id), default=new)
        if first.id != new.id:
            await self._tokens.end_session(new, by="ostiary: a second API token of this name")
            raise _name_taken(new.name)

    async def list(self, username: str) -> list[Session]:
        """The living API tokens of a user, the newest first."""
        return await self._tokens.store.sessions(
            username=username, kind=SessionKind.API_TOKEN, limit=2 * MOST_PER_OWNER
        )

    async def revoke(self, username: str, name: str, *, by: str) -> Session:
        """End the token of this user that has *name*, or this id. Another user's token counts as unknown."""
        for session in await self.list(username):
            if name in (session.name, session.id):
                await self._tokens.end_session(session, by=by)
                return session
        raise UnknownToken()

    def _check_maker(self, maker: Session) -> None:
        """What a program holds makes no other secrets: whoever steals it could make one that outlives it."""
        if not self.enabled:
            raise NotAllowed("API tokens are switched off at this gateway (apiTokens.enabled)")
        if maker.kind is not SessionKind.SIGN_IN:
            raise NotAllowed("an API token is made by somebody who has signed in, and not with the token of a program")


@dataclass(frozen=True, slots=True)
class _Holder:
    """Whom a token stands for, and who vouches for them."""

    user: UserInfo
    provider: str
    sources: tuple[tuple[str, str], ...] = ()


def _name_taken(name: str) -> AccountConflict:
    return AccountConflict(f'there is an API token called "{name}" already')


def checked_token_name(name: str) -> str:
    """*name* without spaces around it; raises `NotPossible` for one that nobody could read or type."""
    name = name.strip()
    if not name or len(name) > LONGEST_NAME or not name.isprintable() or "/" in name:
        raise NotPossible(f"the name of an API token is 1 to {LONGEST_NAME} characters that can be shown, without a /")
    return name


def scope_of(session: Session) -> str:
    """What an API token was narrowed to, as its owner wrote it; empty if it is not."""
    return session.client.partition(_SCOPE)[2]


def maker_of(session: Session) -> str:
    """What an API token was made with."""
    return session.client.partition(_SCOPE)[0]
