"""The conformance suite for identity providers:

    class TestAcmeIdentity(IdentityContract):
        @pytest.fixture
        def provider(self) -> AcmeIdentity: ...

        @pytest.fixture
        def proof(self) -> LoginRequest: ...          # this request signs a user in

        @pytest.fixture
        def wrong_proof(self) -> LoginRequest: ...    # this one looks similar but does not

A provider that redirects users to another page has no `proof`: omit that fixture, and its tests are skipped.
"""

from __future__ import annotations

import asyncio
import traceback
from typing import cast
from urllib.parse import urlsplit

import pytest

from ostiary.errors import LoginRefused
from ostiary.model import UserInfo
from ostiary_gateway.capabilities import ability
from ostiary_gateway.interfaces.identity import (
    Challenge,
    Identified,
    IdentityProvider,
    LoginRequest,
    Redirect,
    Revalidates,
)
from ostiary_gateway.interfaces.lifecycle import Closes
from ostiary_gateway.testing.capabilities import check_members

NOBODY = LoginRequest(
    method="GET",
    path="/auth",
    callback_url="https://gateway.example.com/auth/acme/provider",
    remote_address="192.0.2.1",
)


class IdentityContract:
    """Inherit from this class and provide `provider`, `wrong_proof` and, for a provider without redirects, `proof`."""

    @pytest.fixture
    def provider(self) -> IdentityProvider:
        raise NotImplementedError("give the provider to be judged")

    @pytest.fixture
    def proof(self) -> LoginRequest:
        pytest.skip("this provider lets nobody in with one request")

    @pytest.fixture
    def wrong_proof(self) -> LoginRequest:
        raise NotImplementedError("give a request that is refused")

    async def test_its_members_are_spelt_and_shaped_as_the_contract_says(self, provider: IdentityProvider) -> None:
        check_members("identity", provider)

    async def test_a_proof_gives_a_user(self, provider: IdentityProvider, proof: LoginRequest) -> None:
        _check_user(await provider.handle_client(proof))

    async def test_the_same_proof_gives_the_same_user(self, provider: IdentityProvider, proof: LoginRequest) -> None:
        assert _user_of(await provider.handle_client(proof)) == _user_of(await provider.handle_client(proof))

    async def test_without_a_proof_nobody_is_let_in(self, provider: IdentityProvider) -> None:
        _check_closed(await _answer_of(provider, NOBODY))

    async def test_a_wrong_proof_lets_nobody_in(self, provider: IdentityProvider, wrong_proof: LoginRequest) -> None:
        _check_closed(await _answer_of(provider, wrong_proof))

    async def test_a_return_that_nobody_began_is_refused(self, provider: IdentityProvider) -> None:
        for query in ((), (("state", "guessed"), ("code", "guessed"))):
            with pytest.raises(LoginRefused):
                await provider.handle_provider(
                    LoginRequest("GET", "/auth/acme/provider", query=query, callback_url=NOBODY.callback_url)
                )

    async def test_logins_at_the_same_time_do_not_mix(
        self, provider: IdentityProvider, proof: LoginRequest, wrong_proof: LoginRequest
    ) -> None:
        expected = _user_of(await provider.handle_client(proof))
        results = await asyncio.gather(*(_answer_of(provider, request) for request in (proof, wrong_proof, NOBODY) * 3))
        assert [_user_of(said) for said in results[0::3]] == [expected] * 3
        for closed in (*results[1::3], *results[2::3]):
            _check_closed(closed)

    async def test_a_refusal_does_not_repeat_the_proof(
        self, provider: IdentityProvider, wrong_proof: LoginRequest
    ) -> None:
        try:
            await provider.handle_client(wrong_proof)
        except LoginRefused as refusal:
            text = f"{refusal}{refusal!r}{''.join(traceback.format_exception(refusal))}"
            for _, secret in (*wrong_proof.form, *(h for h in wrong_proof.headers if h[0] in _SECRET_HEADERS)):
                assert secret not in text

    async def test_who_is_still_a_user_stays_one_at_renewal(
        self, provider: IdentityProvider, proof: LoginRequest
    ) -> None:
        user = _user_of(await provider.handle_client(proof))
        assert await _revalidate(provider, cast(UserInfo, user)) == user

    async def test_who_never_was_a_user_is_refused_at_renewal(self, provider: IdentityProvider) -> None:
        with pytest.raises(LoginRefused):
            await _revalidate(provider, UserInfo("nobody-has-this-name"))

    async def test_a_second_close_is_harmless(self, provider: IdentityProvider) -> None:
        closing = ability(provider, Closes)
        if closing is None:
            pytest.skip("this provider has nothing to close")
        await closing.close()
        await closing.close()


_SECRET_HEADERS = ("authorization", "cookie")


async def _answer_of(provider: IdentityProvider, request: LoginRequest) -> object:
    try:
        return await provider.handle_client(request)
    except LoginRefused as refusal:
        return refusal


async def _revalidate(provider: IdentityProvider, user: UserInfo) -> object:
    revalidating = ability(provider, Revalidates)
    if revalidating is None:
        pytest.skip("this provider cannot tell without the person")
    return await revalidating.revalidate(user)


def _user_of(said: object) -> object:
    return said.user if isinstance(said, Identified) else said


def _check_user(answer: object) -> None:
    said = _user_of(answer)
    assert isinstance(said, UserInfo), f"exactly one answer is due, a user: {type(said).__name__}"
    assert said.username, "a user has a name"
    assert not said.username.startswith("system:"), "such names are the system's"
    keys = [key for key, _ in said.extra]
    assert keys == sorted(set(keys)), "extra is sorted, and each key stands once"


def _check_closed(said: object) -> None:
    assert isinstance(said, (Redirect, Challenge, LoginRefused)), f"nobody may come in: {type(said).__name__}"
    if isinstance(said, Redirect):
        assert urlsplit(said.url).scheme in ("https", "http"), "a redirect leads to a page on the web"
    if isinstance(said, Challenge):
        assert said.www_authenticate, "a challenge names a scheme"
