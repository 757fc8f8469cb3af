"""Providers for issuers that are known by name, with the settings as an operator writes them, and an issuer for them.

    provider = party.make(KeycloakIdentity, url=party.issuer.url, realm="acme")
    user = await party.sign_in(provider)

The issuer is on this machine, and has the habits that the documentation of the real one describes: a test gives them
to `party.issuer`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeVar
from urllib.parse import parse_qs, urlsplit

import pytest

from ostiary.core.yaml import ConfigReader, ConfigSection, parse
from ostiary.errors import LoginRefused
from ostiary.model import UserInfo
from ostiary_gateway.catalog import Context
from ostiary_gateway.interfaces.identity import Identified, LoginRequest
from ostiary_gateway.providers.oidc.identity import OidcIdentity
from ostiary_gateway.testing import FakeClock
from tests.support.issuer import Issuer

VISIT = LoginRequest("GET", "/auth", callback_url="https://gateway.example.com/auth/provider")
P = TypeVar("P", bound=OidcIdentity, covariant=True)


class Configured(Protocol[P]):
    def from_config(self, fields: ConfigSection, context: Context) -> P: ...


@dataclass
class RelyingParty:
    issuer: Issuer
    directory: Path
    clock: FakeClock
    made: list[OidcIdentity] = field(default_factory=list)

    def configure(self, provider_class: Configured[P], settings: dict[str, Any]) -> tuple[P, list[str]]:
        """The provider of *settings*, and what is wrong with them."""
        (self.directory / "secret").write_text(f"{self.issuer.client_secret}\n")
        given = {"clientID": self.issuer.client_id, "clientSecretFile": "secret", "ca": "ca.pem", **settings}
        reading = ConfigReader(parse(json.dumps({name: value for name, value in given.items() if value is not None})))
        context = Context(name="staff", directory=self.directory, clock=self.clock)
        provider = provider_class.from_config(reading.root, context)
        assert reading.root.unread() == []
        self.made.append(provider)
        problems = [f"{problem.place.path}: {problem.message} ({problem.hint})" for problem in reading.problems]
        return provider, problems

    def make(self, provider_class: Configured[P], **settings: Any) -> P:
        provider, problems = self.configure(provider_class, settings)
        assert problems == []
        return provider

    async def sign_in(self, provider: OidcIdentity) -> UserInfo:
        answer = await provider.handle_provider(self.issuer.visit(await provider.handle_client(VISIT)))
        return answer.user if isinstance(answer, Identified) else answer

    async def keep(self, provider: OidcIdentity) -> Identified:
        self.issuer.gives_refresh_tokens = True
        answer = await provider.handle_provider(self.issuer.visit(await provider.handle_client(VISIT)))
        assert isinstance(answer, Identified)
        return answer

    async def refusal(self, provider: OidcIdentity) -> LoginRefused:
        with pytest.raises(LoginRefused) as refused:
            await self.sign_in(provider)
        return refused.value

    async def asked(self, provider: OidcIdentity) -> dict[str, str]:
        """What the browser carries to the issuer."""
        redirect = await provider.handle_client(VISIT)
        return {name: values[0] for name, values in parse_qs(urlsplit(redirect.url).query).items()}

    async def close(self) -> None:
        for provider in self.made:
            await provider.close()
