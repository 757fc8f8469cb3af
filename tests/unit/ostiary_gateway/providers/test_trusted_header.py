"""Headers say who it is, if a proxy on the list says so, and nobody else."""

from __future__ import annotations

import pytest

from ostiary.core.yaml import ConfigReader, parse
from ostiary.errors import LoginRefused
from ostiary.model import UserInfo
from ostiary_gateway.catalog import Context
from ostiary_gateway.interfaces.identity import LoginRequest
from ostiary_gateway.providers.common.refresh import Renewal
from ostiary_gateway.providers.trusted_header import TrustedHeaderIdentity
from ostiary_gateway.testing import FakeClock
from tests.support.certificates import certificate

ALICE = ("x-remote-user", "alice")


@pytest.fixture
def provider(clock: FakeClock) -> TrustedHeaderIdentity:
    return TrustedHeaderIdentity(names=("front-proxy",), uid_header="X-Remote-Uid", clock=clock)


@pytest.fixture
def proxy(clock: FakeClock) -> bytes:
    return certificate("front-proxy", now=clock.now())


def visit(der: bytes | None, *headers: tuple[str, str], address: str = "127.0.0.1") -> LoginRequest:
    return LoginRequest("GET", "/auth", headers=headers, peer_certificate=der, remote_address=address)


async def test_a_proxy_on_the_list_is_believed(provider: TrustedHeaderIdentity, proxy: bytes) -> None:
    """S1, S28, S41. One line for each group: a comma is part of a name."""
    headers = (ALICE, ("x-remote-group", "dev"), ("x-remote-group", "a,b"), ("x-remote-uid", "7"))
    assert await provider.handle_client(visit(proxy, *headers)) == UserInfo("alice", "7", ("dev", "a,b"))


async def test_names_are_utf8(provider: TrustedHeaderIdentity, proxy: bytes) -> None:
    said = "größe".encode().decode("latin-1")
    assert (await provider.handle_client(visit(proxy, ("x-remote-user", said)))).username == "größe"
    with pytest.raises(LoginRefused):
        await provider.handle_client(visit(proxy, ("x-remote-user", "gr\xf6\xdfe")))


@pytest.mark.parametrize("name", ["alice", "front-proxy.evil", "Front-Proxy", "", " front-proxy", "front-proxy\x00"])
async def test_a_certificate_with_another_name_is_nobodys(
    provider: TrustedHeaderIdentity, clock: FakeClock, name: str
) -> None:
    """H3. The same authority issues certificates for others, too."""
    der = certificate(*filter(None, (name,)), now=clock.now())
    with pytest.raises(LoginRefused, match="only the trusted proxy"):
        await provider.handle_client(visit(der, ALICE))


async def test_without_a_certificate_no_header_and_no_address_helps(provider: TrustedHeaderIdentity) -> None:
    """H3."""
    forwarded = (("x-forwarded-for", "127.0.0.1"), ("x-client-verify", "SUCCESS"), ("x-ssl-client-cn", "front-proxy"))
    for address in ("127.0.0.1", "10.0.0.1", ""):
        with pytest.raises(LoginRefused, match="only the trusted proxy"):
            await provider.handle_client(visit(None, ALICE, *forwarded, address=address))


async def test_a_certificate_with_two_names_or_whose_time_is_over_is_nobodys(
    provider: TrustedHeaderIdentity, proxy: bytes, clock: FakeClock
) -> None:
    """H3, T6."""
    two = certificate("front-proxy", "alice", now=clock.now())
    with pytest.raises(LoginRefused):
        await provider.handle_client(visit(two, ALICE))
    clock.advance(hours=25)
    with pytest.raises(LoginRefused):
        await provider.handle_client(visit(proxy, ALICE))


@pytest.mark.parametrize(
    "headers",
    [
        (),
        (("x-remote-user", ""),),
        (("x-remote-user", " alice"),),
        (("x-remote-user", "ali\x00ce"),),
        (ALICE, ALICE),
        (ALICE, ("x-remote-user", "admin")),
        (("x_remote_user", "alice"),),
        (("x-remote-user_", "alice"),),
        (ALICE, ("x-remote-uid", "1"), ("x-remote-uid", "2")),
    ],
)
async def test_anything_but_one_name_is_refused(
    provider: TrustedHeaderIdentity, proxy: bytes, headers: tuple[tuple[str, str], ...]
) -> None:
    """H1. A second line may be the client's own, which the proxy has let through."""
    with pytest.raises(LoginRefused):
        await provider.handle_client(visit(proxy, *headers))


async def test_nobody_returns_from_elsewhere(provider: TrustedHeaderIdentity, proxy: bytes) -> None:
    """S28, S30."""
    with pytest.raises(LoginRefused):
        await provider.handle_provider(visit(proxy, ALICE))


async def test_a_session_can_be_made_to_end_with_its_first_token(provider: TrustedHeaderIdentity) -> None:
    """T3."""
    assert not hasattr(provider, "revalidate")
    with pytest.raises(LoginRefused):
        await TrustedHeaderIdentity(names=("x",), renewal=Renewal.SIGN_IN).revalidate(UserInfo("alice"))


def configured(text: str) -> tuple[TrustedHeaderIdentity, list[str]]:
    reading = ConfigReader(parse(text))
    provider = TrustedHeaderIdentity.from_config(reading.root, Context())
    return provider, [f"{problem.place.path}: {problem.message}" for problem in reading.problems]


async def test_headers_can_have_other_names(proxy: bytes, clock: FakeClock) -> None:
    provider, problems = configured("{names: [front-proxy], headers: {user: X-Auth-User, group: X-Auth-Group}}")
    assert problems == []
    provider._clock = clock
    said = (ALICE, ("x-auth-user", "bob"), ("x-auth-group", "ops"))
    assert await provider.handle_client(visit(proxy, *said)) == UserInfo("bob", groups=("ops",))


def test_a_wrong_setting_is_told_with_its_place(subtests: pytest.Subtests) -> None:
    """T7."""
    cases = [
        ("{}", "names: it is missing"),
        ("names: []", "names: it is missing"),
        ("names: [a, '']", "names: it contains an empty string"),
        ("{names: [a], headers: {user: X_Remote_User}}", "headers.user: "),
        ("{names: [a], headers: {user: ''}}", "headers.user: "),
        ("{names: [a], headers: {user: Cookie}}", "headers.user: "),
        ("{names: [a], headers: {user: 'X-A: b'}}", "headers.user: "),
        ("{names: [a], headers: {user: X-A, group: x-a}}", "headers: "),
        ("{names: [a], headers: {user: X-Remote-Group}}", "headers: "),
        ("{names: [a], renewal: yes}", "renewal: "),
    ]
    for text, problem in cases:
        with subtests.test(text=text, problem=problem):
            _, problems = configured(text)
            assert len(problems) == 1
            assert problems[0].startswith(problem)
