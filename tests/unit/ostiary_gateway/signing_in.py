"""What the tests of ``/auth`` share: providers that answer as they are told, and a login with everything around it."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from http.cookies import SimpleCookie
from typing import Any
from urllib.parse import parse_qsl

import pytest

from ostiary.errors import LoginRefused
from ostiary.model import Secret, UserInfo
from ostiary_gateway.accounts.api_tokens import ApiTokens
from ostiary_gateway.accounts.service_accounts import ServiceAccounts
from ostiary_gateway.audit.sign_ins import LoginEvent, LoginEventKind
from ostiary_gateway.authorization.chain import Authorizer
from ostiary_gateway.authorization.step_up import StepUpRules
from ostiary_gateway.config.accounts import ApiTokenSettings, ServiceAccountSettings
from ostiary_gateway.config.provider import Groups, Identity
from ostiary_gateway.interfaces.group import Membership
from ostiary_gateway.interfaces.identity import Identified, LoginRequest, Redirect, RenewalCheck
from ostiary_gateway.interfaces.token_store import Session, TokenStore
from ostiary_gateway.login.admin.area import AdminSources
from ostiary_gateway.login.clusters import Clusters
from ostiary_gateway.login.responses import LoginAnswer
from ostiary_gateway.login.routes import Login
from ostiary_gateway.providers.claims import ClaimedGroups
from ostiary_gateway.replicas.decision_feed import DecisionFeed
from ostiary_gateway.replicas.registry import Replicas
from ostiary_gateway.sessions import TOKENS_PER_USER, Tokens
from ostiary_gateway.stores.memory import MemoryTokenStore
from ostiary_gateway.testing import FakeClock

URL = "https://gw.example.com"
SECRET = "marked-secret"
SESSION = "__Host-ostiary-session"


class Says:
    """An identity provider that answers as it is told, and remembers what it was asked."""

    def __init__(self, client: Any = None, provider: Any = None) -> None:
        self.client, self.provider = client, provider
        self.asked: list[tuple[str, LoginRequest]] = []

    async def handle_client(self, request: LoginRequest) -> Any:
        self.asked.append(("client", request))
        return _given(self.client)

    async def handle_provider(self, request: LoginRequest) -> Any:
        self.asked.append(("provider", request))
        return _given(self.provider)


class Revalidating(Says):
    said: Any = None

    async def revalidate(self, user: UserInfo) -> Any:
        self.asked.append(("revalidate", LoginRequest("", user.username)))
        return user if self.said is None else _given(self.said)


class SaysGroups:
    def __init__(self, of: Any = (), back: Any = None) -> None:
        self.of, self.back = of, back or LoginRefused("nobody was sent elsewhere")
        self.asked: list[tuple[UserInfo, set[str], LoginRequest]] = []

    async def groups_of(self, user: UserInfo, relevant: Any, request: LoginRequest) -> Any:
        self.asked.append((user, set(relevant), request))
        return _given(self.of)

    async def groups_from_provider(self, user: UserInfo, relevant: Any, request: LoginRequest) -> Any:
        self.asked.append((user, set(relevant), request))
        return _given(self.back)


def _given(answer: Any) -> Any:
    if isinstance(answer, Exception):
        raise answer
    return answer


def members(*groups: str) -> tuple[Membership, ...]:
    return tuple(Membership(group) for group in groups)


@dataclass
class Gateway:
    """A login with everything around it."""

    identity: list[Identity]
    clock: FakeClock
    groups: list[Groups] = field(default_factory=list)
    relevant: Any = frozenset({"developers", "operators"})
    external_url: str = URL
    events: list[LoginEvent] = field(default_factory=list)
    provider_seconds: float = 5.0
    store: TokenStore = None  # type: ignore[assignment]  # set below
    authorizer: Authorizer | None = None
    replicas: Replicas | None = None
    clusters: Clusters | None = None
    decisions: DecisionFeed | None = None
    api_tokens: ApiTokenSettings = field(default_factory=ApiTokenSettings)
    starts_per_minute: float = 60.0
    tokens_per_user: int = TOKENS_PER_USER
    step_up: StepUpRules | None = None
    address: str = "192.0.2.1"
    begun: int = 0
    answered: int = 0

    def __post_init__(self) -> None:
        self.store = self.store or MemoryTokenStore(clock=self.clock)
        self.tokens = Tokens(self.store, clock=self.clock, tokens_per_user=self.tokens_per_user)
        self.login = Login(
            identity=self.identity,
            groups=self.groups,
            relevant_groups=self.relevant_groups,
            tokens=self.tokens,
            external_url=self.external_url,
            clock=self.clock,
            on_event=self.events.append,
            provider_seconds=self.provider_seconds,
            authorizer=self.authorizer,
            clusters=self.clusters,
            admin=None
            if self.authorizer is None
            else AdminSources(
                self.tokens,
                self.authorizer,
                replicas=self.replicas,
                decisions=self.decisions,
                accounts=ServiceAccounts(self.tokens, ServiceAccountSettings(), clock=self.clock),
                clock=self.clock,
            ),
            api_tokens=ApiTokens(self.tokens, self.api_tokens, is_checked=lambda provider: True),
            starts_per_minute=self.starts_per_minute,
            step_up=self.step_up,
        )

    async def relevant_groups(self) -> Any:
        return _given(self.relevant)

    async def get(self, target: str = "/auth", *, cookie: str = "", method: str = "GET", **parts: Any) -> LoginAnswer:
        path, _, query = target.partition("?")
        pairs = tuple(parse_qsl(query, keep_blank_values=True))
        headers = (*parts.pop("headers", ()), *((("cookie", cookie),) if cookie else ()))
        request = LoginRequest(method, path, query=pairs, headers=headers, remote_address=self.address, **parts)
        return await self._recorded_as_answered(request)

    async def _recorded_as_answered(self, request: LoginRequest) -> LoginAnswer:
        self.begun += 1
        before, begun, alone = len(self.events), self.begun, self.begun == self.answered + 1
        answer = await self.login.handle(request, "request-1")
        self.answered += 1
        # Of several at once it cannot be told which event is whose.
        if alone and self.begun == begun:
            told = [event.status for event in self.events[before:]]
            assert told == [answer.status] * len(told), "what is recorded is what was answered"
        return answer

    async def post(self, path: str, **fields: str) -> LoginAnswer:
        return await self.get(path, method="POST", form=tuple(fields.items()))

    async def tokens_kept(self) -> int:
        return await self.store.count()


Make = Callable[..., Gateway]


@pytest.fixture
def make(clock: FakeClock) -> Make:
    def build(
        *providers: Any, groups: Any = (), prefix: str = "", prefixes: Sequence[str] = (), **parts: Any
    ) -> Gateway:
        names = [f"idp{number}" for number in range(1, len(providers) + 1)]
        prefixes = prefixes or ([prefix] if len(providers) == 1 else [f"{name}:" for name in names])
        identity = [
            Identity(name, "test", provider, prefix=prefix)
            for name, provider, prefix in zip(names, providers, prefixes, strict=True)
        ]
        checks = [
            provider if isinstance(provider, Groups) else Groups(f"g{number}", "test", provider)
            for number, provider in enumerate(groups, start=1)
        ]
        return Gateway(identity, clock, checks, **parts)

    return build


def body(answer: LoginAnswer) -> dict[str, Any]:
    found = json.loads(answer.body)
    assert isinstance(found, dict)
    return found


def cookie_of(answer: LoginAnswer) -> str:
    """The cookie as a browser sends it back."""
    jar = SimpleCookie(answer.header("Set-Cookie") or "")
    return "; ".join(f"{name}={morsel.value}" for name, morsel in jar.items())


async def nobody_came_in(gateway: Gateway, answer: LoginAnswer) -> None:
    assert b"token" not in answer.body
    assert await gateway.tokens_kept() == 0
    assert not [event for event in gateway.events if event.kind is LoginEventKind.ISSUED]


class Browser:
    """Keeps cookies, asks for pages, and fills in their forms as a browser would."""

    AGENT = "Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/156.0.0.0 Safari/537.36"

    def __init__(self, gateway: Gateway) -> None:
        self.gateway = gateway
        self.cookies: dict[str, str] = {}

    async def get(self, target: str, *, headers: tuple[tuple[str, str], ...] = ()) -> LoginAnswer:
        return await self._send(target, "GET", headers=headers)

    async def post(
        self, target: str, form: dict[str, str], *, headers: tuple[tuple[str, str], ...] | None = None
    ) -> LoginAnswer:
        if headers is None:
            headers = (("origin", self.gateway.external_url), ("sec-fetch-site", "same-origin"))
        return await self._send(target, "POST", form=tuple(form.items()), headers=headers)

    async def sign_in(self, target: str = "/auth", **form: str) -> LoginAnswer:
        """Sign in, and load the page where that ends."""
        answer = await (self.post(target, form) if form else self.get(target))
        return await self.follow(answer)

    async def follow(self, answer: LoginAnswer) -> LoginAnswer:
        assert answer.status == 303, answer
        return await self.get(answer.header("Location") or "")

    async def form_token(self) -> str:
        return hidden(await self.get("/auth/sessions"), "form_token")

    async def _send(
        self, target: str, method: str, *, headers: tuple[tuple[str, str], ...] = (), **parts: Any
    ) -> LoginAnswer:
        sent = (
            ("accept", "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"),
            ("user-agent", self.AGENT),
            *headers,
        )
        cookie = "; ".join(f"{name}={value}" for name, value in self.cookies.items())
        answer = await self.gateway.get(target, cookie=cookie, method=method, headers=sent, **parts)
        for name, value in answer.headers:
            if name == "Set-Cookie":
                for key, morsel in SimpleCookie(value).items():
                    self.cookies[key] = morsel.value
                    if morsel["max-age"] == "0":
                        del self.cookies[key]
        return answer


def hidden(answer: LoginAnswer, name: str) -> str:
    """What a page's form holds under *name*."""
    found = re.search(rf'name="{name}" value="([^"]*)"', answer.body.decode())
    assert found is not None, answer.body.decode()
    return html.unescape(found[1])


def text_of(answer: LoginAnswer) -> str:
    return answer.body.decode()


def events(gateway: Gateway) -> list[LoginEventKind]:
    return [event.kind for event in gateway.events]


AWAY = Redirect("https://idp.test/?state=abc", remember=(("verifier", "marked-verifier"), ("nonce", "n1")))


def sends_away(client: Any = AWAY, back: Any = None) -> Says:
    return Says(client, back or UserInfo("alice"))


REFRESH = "refresh-canary-1"


class Refreshing(Says, ClaimedGroups):
    """An identity provider that keeps a refresh token, rotates it, and tells groups with each answer."""

    renewal_check = RenewalCheck.WITH_KEPT

    def __init__(self, *groups: str, keeps: bool = True) -> None:
        super().__init__()
        self.user: Any = UserInfo("alice", groups=groups)
        self.keeps = keeps
        self.used: list[str] = []
        self.error: Exception | None = None

    async def handle_client(self, request: LoginRequest) -> Any:
        return Identified(self.user, Secret(REFRESH)) if self.keeps else self.user

    async def ask_again(self, user: UserInfo, kept: Secret) -> Identified:
        self.used.append(kept.reveal())
        if self.error is not None:
            raise self.error
        return Identified(self.user, Secret(f"refresh-canary-{len(self.used) + 1}"))


async def session_of(gateway: Gateway, pair: dict[str, Any]) -> Session:
    session = await gateway.tokens.store.session(pair["session"])
    assert session is not None
    return session
