"""What programs need of a configuration: service accounts, API tokens, and the checks of their holders.

Made by the app. A reload revokes the tokens of accounts that the new configuration no longer declares.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from starlette.routing import Route

from ostiary.core.clock import Clock
from ostiary.core.tokens import Attested
from ostiary.gateway.accounts.api_tokens import ApiTokens
from ostiary.gateway.accounts.holder_checks import HolderChecks
from ostiary.gateway.accounts.service_accounts import ServiceAccounts
from ostiary.gateway.accounts.token_use import TokenUse
from ostiary.gateway.config.renewal_check import renewal_check
from ostiary.gateway.config.settings import GatewayConfig
from ostiary.gateway.config.settings.accounts import DeclaredAccount
from ostiary.gateway.doors.accounts_api import AccountsApi
from ostiary.gateway.doors.api_tokens_api import ApiTokensApi
from ostiary.gateway.login.routes import Login
from ostiary.gateway.process.app.shared import Shared
from ostiary.interfaces.identity import RenewalCheck
from ostiary.interfaces.token_store import Found, Session

KeepRunning = Callable[[str, Callable[[], Awaitable[None]]], None]
# How often the holders of tokens with open streams are looked at: whether their check is due.
STREAM_CHECK_SECONDS = 60.0


class Programs:
    # Set before the first request: the login is made from what is here.
    login: Login

    def __init__(self, config: GatewayConfig, shared: Shared, clock: Clock) -> None:
        tokens = shared.tokens
        self._declared = config.service_accounts.declared
        # Accounts of configurations before this one whose tokens may have to be revoked.
        self._earlier: tuple[DeclaredAccount, ...] = ()
        self._authenticator = shared.authenticator
        self._clock = clock
        self.accounts = ServiceAccounts(tokens, config.service_accounts, clock=clock)
        checked = {
            identity.name
            for identity in config.identity
            if renewal_check(identity, config.groups) is RenewalCheck.ASKED
        }
        self.api_tokens = ApiTokens(tokens, config.api_tokens, is_checked=checked.__contains__)
        self._use = TokenUse(tokens, clock)
        self._checks = HolderChecks(
            tokens, self.accounts, self._recheck, self._use, interval=config.tokens.lifetime, clock=clock
        )
        self._interval = config.tokens.lifetime
        self._enabled = config.api_tokens.enabled

    @property
    def routes(self) -> list[Route]:
        return [*AccountsApi(self.accounts, self.api_tokens).routes, *ApiTokensApi(self.api_tokens).routes]

    async def find_token(self, token: str) -> Found | None:
        """Who presents a token, if its holder is still somebody."""
        return await self._checks.find(token)

    def adopt(self, old: Programs) -> None:
        self._earlier = tuple({*old._earlier, *old._declared})

    def start(self, keep_running: KeepRunning) -> None:
        self._authenticator.check_holder = self._checks.check
        keep_running("writing down the use of API tokens", self._use.run)
        keep_running("checking the owners of API tokens with open requests", self._check_streams)
        if self._earlier:
            keep_running("ending the tokens of removed service accounts", self._end_removed)

    async def _recheck(self, session: Session) -> Attested:
        return await self.login.recheck(session)

    async def _check_streams(self) -> None:
        """A stream lives as long as its session, and that of an API token is long: look at its owner meanwhile."""
        while True:
            await asyncio.sleep(STREAM_CHECK_SECONDS)
            await self._authenticator.check_streams()

    async def _end_removed(self) -> None:
        await self.accounts.end_removed(self._earlier, by="ostiary: no longer declared in the configuration")
        self._earlier = ()
        # It is done once; what runs in the background is begun again when it ends.
        await asyncio.Event().wait()
