"""What the visitors of web applications need of a configuration: the way to sign in, and the checks of their sessions.

Made by the app with the sign-in routes. Without web applications and public paths there is nothing here.
"""

from __future__ import annotations

from ostiary.core.clock import Clock
from ostiary.core.counting.rates import Buckets
from ostiary.gateway.config.settings import GatewayConfig
from ostiary.gateway.login.applications.checks import ApplicationChecks
from ostiary.gateway.login.applications.http_adapter import STARTS_PER_MINUTE, ApplicationPages
from ostiary.gateway.login.routes import Login
from ostiary.gateway.process.app.shared import Shared
from ostiary.gateway.upstream.applications import Applications


class Visitors:
    """`pages` is None where no request is treated as a browser's."""

    def __init__(
        self, config: GatewayConfig, shared: Shared, applications: Applications, login: Login, clock: Clock
    ) -> None:
        self._authenticator = shared.authenticator
        self._checks = ApplicationChecks(
            shared.tokens, login.recheck_visitor, interval=config.tokens.lifetime, clock=clock
        )
        self.pages: ApplicationPages | None = None
        if any(upstream.is_application or upstream.public for upstream in config.upstreams):
            starts = Buckets(
                STARTS_PER_MINUTE / 60,
                STARTS_PER_MINUTE,
                clock=clock,
                counts=shared.counts,
                name="sign-ins of web applications",
            )
            self.pages = ApplicationPages(
                applications, login.applications, starts, config.listen.trusted_proxies, look=config.look
            )

    def start(self) -> None:
        self._authenticator.check_visitor = self._checks.check
