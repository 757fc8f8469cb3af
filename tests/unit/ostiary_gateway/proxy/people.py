"""A gateway with step-up rules in the test's own process, and an identity system that says what the test wants."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

from ostiary.core.clock import Clock
from ostiary.model import UserInfo
from ostiary_gateway.config.gateway_config import GatewayConfig
from ostiary_gateway.config.provider import Identity
from ostiary_gateway.config.step_up import StepUpRuleSettings, StepUpSettings
from ostiary_gateway.interfaces.identity import LoginRequest, RequiredAuthentication
from ostiary_gateway.interfaces.token_store import Session
from ostiary_gateway.proxy.step_up_gate import Demand, DemandState
from ostiary_gateway.server.listener import bind
from ostiary_gateway.server.worker import Worker
from ostiary_gateway.sessions.authentication_context import AuthenticationContext, with_context
from tests.support.http1 import Message, connected, get, until
from tests.unit.ostiary_gateway.proxy.gateways import ALICE, Gateway, Policy, configured, kubernetes

PODS = "/api/v1/namespaces/prod/pods"
RULE = StepUpRuleSettings(
    name="delete-in-prod",
    verbs=("delete",),
    resources=("*",),
    namespaces=("prod",),
    amr=("mfa",),
    max_age=timedelta(minutes=15),
)


class Asks:
    """An identity provider that can step up. Whoever visits is *user*, and proves what the test says."""

    steps_up = True

    def __init__(self, clock: Clock | None = None, user: UserInfo = ALICE, amr: tuple[str, ...] = ("mfa",)) -> None:
        self.clock, self.user, self.amr = clock, user, amr
        self.required: list[RequiredAuthentication | None] = []

    async def handle_client(self, request: LoginRequest) -> UserInfo:
        self.required.append(request.required)
        assert self.clock is not None
        context = AuthenticationContext(amr=self.amr, auth_time=self.clock.now().replace(microsecond=0))
        return with_context(self.user, context)

    async def handle_provider(self, request: LoginRequest) -> UserInfo:
        raise NotImplementedError


class CannotAsk(Asks):
    steps_up = False


def with_rules(
    folder: Path,
    server: str,
    policy: Policy | None = None,
    *,
    provider: Asks | None = None,
    rules: tuple[StepUpRuleSettings, ...] = (RULE,),
    **settings: Any,
) -> GatewayConfig:
    config = configured(folder, server, policy, upstreams=kubernetes(server))
    identity = Identity("me", "asks", provider or Asks())
    return replace(config, identity=(identity,), step_up=StepUpSettings(rules=rules, **settings))


# --- what the test does to a session ---


async def session_of(site: Gateway) -> Session:
    record = await site.worker.app.shared.tokens.find(site.token)
    assert record is not None
    return record.session


async def prove(site: Gateway, *amr: str, ago: timedelta = timedelta(0)) -> None:
    """The session says from now on that its person signed in so, as a step-up at another replica makes it."""
    context = AuthenticationContext(amr=amr, auth_time=(site.clock.now() - ago).replace(microsecond=0))
    session = await session_of(site)
    await site.store.add(replace(session, user=with_context(session.user, context)), [])


async def demanded(site: Gateway) -> Demand:
    """What a held request of the session waits for."""
    session_id, demands = (await session_of(site)).id, site.worker.app.programs.login.step_up_demands
    while True:
        demand = await demands.find(session_id)
        if demand is not None:
            return demand
        await until(lambda: held(site) > 0)


async def set_state(site: Gateway, state: DemandState) -> None:
    await site.worker.app.programs.login.step_up_demands.set_state((await demanded(site)).id, state)


def held(site: Gateway) -> int:
    return int(site.count("step_up_held_requests"))


def message_of(answer: Message) -> str:
    return str(json.loads(answer.body)["message"])


# --- another worker with the same store, and a person's browser there ---


@asynccontextmanager
async def beside(site: Gateway, config: GatewayConfig) -> AsyncIterator[int]:
    """Another replica with the same token store; gives its port."""
    config = replace(config, store=replace(config.store, instance=site.store))
    with bind(config.listen.address) as listener:
        worker = Worker(config, listener, clock=site.clock)
        await worker.start()
        try:
            yield listener.getsockname()[1]
        finally:
            # The store stays open: it is the other one's.
            await worker.app.close(keep_shared=True)


async def post_form(port: int, path: str, fields: dict[str, str], token: str = "") -> Message:
    body = urlencode(fields)
    lines = ["Content-Type: application/x-www-form-urlencoded", f"Content-Length: {len(body)}"]
    if token:
        lines.append(f"Authorization: Bearer {token}")
    async with connected(port) as client:
        return await client.ask(get(path, *lines, method="POST") + body.encode(), "POST")


async def visit(port: int, target: str, cookie: str = "") -> Message:
    """A page load of a browser."""
    more = (f"Cookie: {cookie}",) if cookie else ()
    async with connected(port) as client:
        return await client.ask(get(target, "Accept: text/html", "Sec-Fetch-Mode: navigate", *more))


def cookie_of(answer: Message) -> str:
    cookie = answer.one("Set-Cookie")
    assert cookie is not None
    return cookie.decode().partition(";")[0]


def link_of(page: Message) -> str:
    link = re.search(r'<a class="button" href="([^"]+)"', page.body.decode())
    assert link is not None, page.body
    return link[1]


def location_of(answer: Message) -> dict[str, str]:
    """The query of where the browser is sent."""
    where = answer.one("Location")
    assert where is not None, answer.body
    return dict(pair.split("=", 1) for pair in urlsplit(where.decode()).query.split("&"))
