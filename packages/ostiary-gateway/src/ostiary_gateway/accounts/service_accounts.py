"""Service accounts: create, list, disable, delete, and issue their tokens.

An account is an object in the token store, or is declared in gateway.yaml and can only be changed there. An account
that is not active gets no token. Disabling or deleting it also revokes its user, which ends all its tokens everywhere.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from enum import Enum

from ostiary.core.account_names import AccountName, checked_account_name
from ostiary.core.clock import SYSTEM_CLOCK, Clock
from ostiary.errors import ProviderError
from ostiary.model import UserInfo
from ostiary_gateway.accounts.errors import AccountConflict, NotPossible, UnknownAccount
from ostiary_gateway.accounts.token_rules import Lifetimes, delegation_for
from ostiary_gateway.capabilities import ability
from ostiary_gateway.config.accounts import DeclaredAccount, ServiceAccountSettings
from ostiary_gateway.interfaces.store_capabilities import ObjectStore, StoredObject
from ostiary_gateway.interfaces.token_store import RevocationKind
from ostiary_gateway.sessions import IssuedToken, Tokens

# The kind of the stored objects.
KIND = "serviceaccount"


class AccountState(Enum):
    ACTIVE = "active"
    DISABLED = "disabled"
    # Its tokens are being revoked. Deleting it again completes an interrupted deletion.
    DELETING = "deleting"


@dataclass(frozen=True, slots=True)
class ServiceAccount:
    """A service account. `created_at` and `version` are None if it is declared in the configuration."""

    name: AccountName
    state: AccountState = AccountState.ACTIVE
    description: str = ""
    created_at: datetime | None = None
    created_by: str = ""
    version: int | None = None

    @property
    def is_active(self) -> bool:
        return self.state is AccountState.ACTIVE

    @property
    def is_declared(self) -> bool:
        return self.version is None

    def encode(self) -> bytes:
        assert self.created_at is not None
        fields = {
            "state": self.state.value,
            "description": self.description,
            "createdAt": self.created_at.astimezone(UTC).isoformat(),
            "createdBy": self.created_by,
        }
        return json.dumps(fields, separators=(",", ":")).encode()

    def in_state(self, state: AccountState) -> ServiceAccount:
        return replace(self, state=state)


def decode_account(stored: StoredObject) -> ServiceAccount:
    """Decode a stored account. Raises `ProviderError` for an object in another form: never guess its meaning."""
    try:
        fields = json.loads(stored.data)
        namespace, _, name = stored.name.partition("/")
        return ServiceAccount(
            checked_account_name(namespace, name),
            AccountState(fields["state"]),
            str(fields["description"]),
            datetime.fromisoformat(fields["createdAt"]),
            str(fields["createdBy"]),
            stored.version,
        )
    except (ValueError, KeyError, TypeError):
        raise ProviderError(
            "the token store holds a service account that cannot be read",
            cause=f'the object "{stored.name}" has another form',
            code="token-store-unavailable",
        ) from None


# The provider of their sessions. No entry of `identity` can have this name.
PROVIDER = "ostiary:serviceaccount"
MOST_LISTED = 1000
# Attempts of an update with compare and set. Concurrent updates of one account are rare.
TRIES = 5


@dataclass(frozen=True, slots=True)
class AccountPage:
    """A page of a list. `after` is the position of the next page; empty if this is the last."""

    accounts: tuple[ServiceAccount, ...]
    after: str = ""


class ServiceAccounts:
    """The service accounts of a gateway: those in the token store and those declared in gateway.yaml."""

    def __init__(self, tokens: Tokens, settings: ServiceAccountSettings, *, clock: Clock = SYSTEM_CLOCK) -> None:
        self._tokens = tokens
        self._objects = ability(tokens.store, ObjectStore)
        self._clock = clock
        self._declared = declared_accounts(settings.declared)
        self._lifetimes = Lifetimes(settings.lifetime, settings.longest_lifetime)

    async def find(self, name: AccountName) -> ServiceAccount | None:
        if name in self._declared:
            return self._declared[name]
        stored = None if self._objects is None else await self._objects.find_object(KIND, str(name))
        return None if stored is None else decode_account(stored)

    async def get(self, name: AccountName) -> ServiceAccount:
        account = await self.find(name)
        if account is None:
            raise UnknownAccount(name)
        return account

    async def get_active(self, name: AccountName) -> ServiceAccount:
        """Return the account. Raises `NotPossible` if it is not active and therefore may not have tokens."""
        account = await self.get(name)
        if not account.is_active:
            raise NotPossible(f'the service account "{name}" is {account.state.value}')
        return account

    async def list(self, namespace: str = "", *, after: str = "", limit: int = MOST_LISTED) -> AccountPage:
        """Return the first *limit* accounts after *after*, by namespace and name; of all namespaces by default."""
        limit = max(1, min(limit, MOST_LISTED))
        # Names are sorted as "namespace/name", so the accounts of a namespace are contiguous.
        first = f"{namespace}/" if namespace else ""
        begin = max(after, first)
        stored = [] if self._objects is None else await self._objects.list_objects(KIND, after=begin, limit=limit + 1)
        by_name = {each.name: decode_account(each) for each in stored if each.name.startswith(first)}
        # If the page is full, declared accounts after its last object belong to the next page.
        last = stored[-1].name if len(stored) > limit else ""
        for declared in self._declared.values():
            name = str(declared.name)
            if name.startswith(first) and name > begin and (not last or name <= last):
                by_name[name] = declared
        names = sorted(by_name)
        page = names[:limit]
        is_more = len(names) > limit
        return AccountPage(tuple(by_name[name] for name in page), page[-1] if is_more else "")

    async def create(self, name: AccountName, *, description: str = "", by: str = "") -> ServiceAccount:
        objects = self._writable()
        if name in self._declared:
            raise AccountConflict(f'the service account "{name}" is declared in the configuration')
        account = ServiceAccount(name, AccountState.ACTIVE, description, self._clock.now(), by)
        version = await self._put_new(objects, account)
        if await self._tokens.store.sessions(username=name.username, limit=1):
            # Tokens of an earlier account of this name must not be valid for the new one.
            await self._revoke(name, by=f"{by} (created the service account)")
        return ServiceAccount(name, account.state, description, account.created_at, by, version)

    async def _put_new(self, objects: ObjectStore, account: ServiceAccount) -> int:
        try:
            version = await objects.put_object(KIND, str(account.name), account.encode(), version=0)
        except ProviderError as error:
            if error.code != "token-store-full":
                raise
            raise NotPossible("there are as many service accounts as the token store keeps: delete some") from None
        if version is None:
            raise AccountConflict(f'the service account "{account.name}" already exists')
        return version

    async def set_state(self, name: AccountName, state: AccountState, *, by: str = "") -> ServiceAccount:
        """Enable or disable an account. Disabling revokes all its tokens, even if it was disabled before."""
        account = await self._write_state(name, state)
        if not account.is_active:
            await self._revoke(name, by=f"{by} (disabled the service account)")
        return account

    async def delete(self, name: AccountName, *, by: str = "") -> int:
        """Delete the account, revoke its tokens, and return how many ended.

        The account first stops getting tokens, then its tokens are revoked, then it is removed. If the deletion is
        interrupted, the account is still listed, and can be deleted again.
        """
        account = await self._write_state(name, AccountState.DELETING)
        ended = await self._revoke(name, by=f"{by} (deleted the service account)")
        # With another version, it was concurrently deleted and created again.
        await self._writable().delete_object(KIND, str(name), version=account.version)
        return ended

    async def issue(
        self, name: AccountName, *, lifetime: timedelta | None = None, scope: str = "", client: str = ""
    ) -> IssuedToken:
        """Issue a token of the account; with a *scope*, a scoped token.

        Raises `LoginRefused` if the account is disabled or deleted concurrently.
        """
        span, (delegation, _) = self._lifetimes.resolve(lifetime), delegation_for(scope)
        # Read the number before the account: the store rejects a token that a later revocation covers.
        sequence = await self._tokens.sequence()
        await self.get_active(name)
        return await self._tokens.issue_token(
            user_of(name),
            provider=PROVIDER,
            client=client,
            lifetime=span,
            delegation=delegation,
            sequence=sequence,
        )

    async def end_removed(self, before: Iterable[DeclaredAccount], *, by: str) -> None:
        """Revoke the tokens of accounts that the configuration *before* declared and this one no longer does."""
        for earlier in before:
            name = earlier.account_name
            account = await self.find(name)
            if account is None or not account.is_active:
                await self._revoke(name, by=by)

    async def _write_state(self, name: AccountName, state: AccountState) -> ServiceAccount:
        objects = self._writable()
        if name in self._declared:
            raise NotPossible(f'the service account "{name}" is declared in the configuration: change it there')
        for _ in range(TRIES):
            account = await self.get(name)
            if account.state is AccountState.DELETING and state is not AccountState.DELETING:
                raise AccountConflict(f'the service account "{name}" is being deleted')
            data = account.in_state(state).encode()
            version = await objects.put_object(KIND, str(name), data, version=account.version)
            if version is not None:
                return ServiceAccount(name, state, account.description, account.created_at, account.created_by, version)
        raise AccountConflict(f'the service account "{name}" is being changed by somebody else: try again')

    async def _revoke(self, name: AccountName, *, by: str) -> int:
        return await self._tokens.revoke(RevocationKind.USER, name.username, by=by)

    def _writable(self) -> ObjectStore:
        if self._objects is None:
            raise NotPossible(
                "the token store of this gateway keeps no service accounts: declare them in serviceAccounts.declared"
            )
        return self._objects


def user_of(name: AccountName) -> UserInfo:
    return UserInfo(name.username, groups=name.groups)


def declared_accounts(declared: Iterable[DeclaredAccount]) -> Mapping[AccountName, ServiceAccount]:
    return {
        each.account_name: ServiceAccount(
            each.account_name,
            AccountState.DISABLED if each.disabled else AccountState.ACTIVE,
            each.description,
        )
        for each in declared
    }
