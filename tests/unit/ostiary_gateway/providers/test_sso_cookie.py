"""A cookie with a signed token lets its bearer in, if it is from the issuer, for us, and of now."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trustme

from ostiary.core.yaml import ConfigReader, parse
from ostiary.errors import LoginRefused, ProviderError
from ostiary.model import UserInfo
from ostiary_gateway.catalog import Context
from ostiary_gateway.interfaces.identity import LoginRequest
from ostiary_gateway.providers.common.jwt_issuer import REFETCH_SECONDS, FileKeys
from ostiary_gateway.providers.common.outbound import Outbound
from ostiary_gateway.providers.oidc.claims import ClaimNames
from ostiary_gateway.providers.sso_cookie import SsoCookieIdentity
from ostiary_gateway.testing import FakeClock
from tests.support.issuer import ABSENT, Issuer, ec_key, public

NAME = "sso"


@pytest.fixture
def issuer(ca: trustme.CA, clock: FakeClock) -> Iterator[Issuer]:
    with Issuer(ca, clock).running() as server:
        server.client_id = "gateway"
        yield server


@pytest.fixture
def provider(issuer: Issuer, clock: FakeClock, tmp_path: Path) -> SsoCookieIdentity:
    keys(issuer, tmp_path)
    return SsoCookieIdentity(
        cookie=NAME,
        issuer=issuer.url,
        audiences=("gateway",),
        keys=FileKeys(tmp_path / "keys.json", clock=clock),
        claims=ClaimNames(groups="groups"),
        clock=clock,
    )


def keys(issuer: Issuer, folder: Path) -> None:
    (folder / "keys.json").write_text(json.dumps({"keys": issuer.published}))


def visit(*cookies: str) -> LoginRequest:
    return LoginRequest("GET", "/auth", headers=tuple(("cookie", line) for line in cookies))


async def test_the_cookie_is_the_proof(provider: SsoCookieIdentity, issuer: Issuer) -> None:
    """S1, S28."""
    issuer.person["groups"] = ["developers"]
    token = issuer.id_token()
    for line in (f"{NAME}={token}", f"a=b; {NAME}={token}; c", f'{NAME}="{token}"'):
        assert await provider.handle_client(visit(line)) == UserInfo("7f3a", groups=("developers",))


@pytest.mark.parametrize(
    "lines", [(), ("other=x",), (f"{NAME}=",), (NAME,), (f"{NAME}=nonsense",), (f"{NAME.upper()}=TOKEN",)]
)
async def test_without_the_cookie_nobody_comes_in(
    provider: SsoCookieIdentity, issuer: Issuer, lines: tuple[str, ...]
) -> None:
    with pytest.raises(LoginRefused):
        await provider.handle_client(visit(*(line.replace("TOKEN", issuer.id_token()) for line in lines)))


async def test_a_cookie_that_stands_twice_is_none(provider: SsoCookieIdentity, issuer: Issuer) -> None:
    """Another site of the same domain may have added one, to sign somebody in as somebody else."""
    token = issuer.id_token()
    for lines in ((f"{NAME}={token}; {NAME}={token}",), (f"{NAME}={token}", f"{NAME}=x")):
        with pytest.raises(LoginRefused):
            await provider.handle_client(visit(*lines))


@pytest.mark.parametrize(
    ("claims", "header"),
    [
        ({"aud": "another-application"}, {}),
        ({"aud": ["gateway", "another-application"]}, {}),
        ({"aud": ABSENT}, {}),
        ({"iss": "https://evil.example"}, {}),
        ({"exp": 1}, {}),
        ({"exp": ABSENT}, {}),
        ({"nbf": 99_999_999_999}, {}),
        ({"sub": ABSENT}, {}),
        ({}, {"alg": "none"}),
        ({}, {"alg": "HS256"}),
        ({}, {"kid": "unknown"}),
        ({}, {"typ": "logout+jwt"}),
    ],
)
async def test_a_token_that_lies_is_refused(
    provider: SsoCookieIdentity, issuer: Issuer, claims: dict[str, Any], header: dict[str, Any]
) -> None:
    """L7."""
    issuer.claims, issuer.header = claims, header
    with pytest.raises(LoginRefused) as refused:
        await provider.handle_client(visit(f"{NAME}={issuer.id_token()}"))
    assert issuer.id_token() not in str(refused.value)


async def test_an_access_token_may_be_the_cookie(provider: SsoCookieIdentity, issuer: Issuer) -> None:
    issuer.header = {"typ": "at+jwt"}
    assert await provider.handle_client(visit(f"{NAME}={issuer.id_token()}"))


async def test_keys_of_a_file_are_read_again_when_they_change(
    provider: SsoCookieIdentity, issuer: Issuer, tmp_path: Path
) -> None:
    before = visit(f"{NAME}={issuer.id_token()}")
    assert await provider.handle_client(before)
    issuer.rotate(ec_key("ec-2"))
    keys(issuer, tmp_path)
    assert await provider.handle_client(visit(f"{NAME}={issuer.id_token()}"))
    with pytest.raises(LoginRefused):
        await provider.handle_client(before)
    (tmp_path / "keys.json").unlink()
    with pytest.raises(ProviderError):
        await provider.handle_client(before)


@pytest.mark.parametrize("direct", [True, False])
async def test_keys_are_found_by_discovery_or_at_their_address(
    issuer: Issuer, ca: trustme.CA, clock: FakeClock, tmp_path: Path, direct: bool
) -> None:
    ca.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    provider, problems = configured(
        f"{{cookie: sso, issuer: {issuer.url}, audiences: [gateway], ca: ca.pem"
        + (f", keysURL: {issuer.url}/keys}}" if direct else "}"),
        tmp_path,
        clock,
    )
    assert problems == []
    assert await provider.handle_client(visit(f"{NAME}={issuer.id_token()}"))
    assert issuer.paths("/.well-known") == ([] if direct else ["/.well-known/openid-configuration"])
    await provider.close()


async def test_forged_cookies_do_not_become_questions_to_the_issuer(
    issuer: Issuer, ca: trustme.CA, clock: FakeClock, tmp_path: Path
) -> None:
    ca.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    provider = SsoCookieIdentity(
        cookie=NAME,
        issuer=issuer.url,
        audiences=("gateway",),
        outbound=Outbound("the issuer", ca=tmp_path / "ca.pem"),
        clock=clock,
    )
    good = visit(f"{NAME}={issuer.id_token()}")
    await provider.handle_client(good)
    issuer.header["kid"] = "unknown"
    for _ in range(5):
        with pytest.raises(LoginRefused):
            await provider.handle_client(visit(f"{NAME}={issuer.id_token()}"))
    assert len(issuer.paths("/keys")) == 2
    assert await provider.handle_client(good)
    clock.advance(REFETCH_SECONDS)
    issuer.rotate(ec_key("unknown"))
    assert await provider.handle_client(visit(f"{NAME}={issuer.id_token()}"))
    await provider.close()


async def test_nobody_returns_from_elsewhere(provider: SsoCookieIdentity, issuer: Issuer) -> None:
    """S28, S30."""
    with pytest.raises(LoginRefused):
        await provider.handle_provider(visit(f"{NAME}={issuer.id_token()}"))


def configured(text: str, folder: Path, clock: FakeClock) -> tuple[SsoCookieIdentity, list[str]]:
    reading = ConfigReader(parse(text))
    provider = SsoCookieIdentity.from_config(reading.root, Context(name="sso", directory=folder, clock=clock))
    return provider, [f"{problem.place.path}: {problem.message}" for problem in reading.problems]


def test_a_wrong_setting_is_told_with_its_place(
    subtests: pytest.Subtests, tmp_path_factory: pytest.TempPathFactory
) -> None:
    cases = [
        ("{issuer: https://a, audiences: [x]}", "cookie: it is missing"),
        ("{cookie: 'a b', issuer: https://a, audiences: [x]}", "cookie: it is missing"),
        ("{cookie: a, audiences: [x]}", "issuer: it is missing"),
        ("{cookie: a, issuer: https://a}", "audiences: it is missing"),
        ("{cookie: a, issuer: https://a, audiences: [x], keysURL: http://a/keys}", "keysURL: "),
        ("{cookie: a, issuer: https://a, audiences: [x], keysFile: no-such-file}", "keysFile: "),
        ("{cookie: a, issuer: https://a, audiences: [x], keysFile: good, keysURL: https://a/k}", "keysFile: either"),
        ("{cookie: a, issuer: https://a, audiences: [x], algorithms: [HS256]}", "algorithms: "),
    ]
    for text, problem in cases:
        with subtests.test(text=text, problem=problem):
            tmp_path = tmp_path_factory.mktemp("case")
            clock = FakeClock()
            (tmp_path / "good").write_text(json.dumps({"keys": [public(ec_key())]}))
            _, problems = configured(text, tmp_path, clock)
            assert len(problems) == 1
            assert problems[0].startswith(problem)
