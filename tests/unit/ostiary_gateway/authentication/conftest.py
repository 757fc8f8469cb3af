"""An authenticator over a store that the test holds in its hand."""

from __future__ import annotations

import pytest

from ostiary_gateway.authentication.authenticator import TokenAuthenticator
from ostiary_gateway.sessions import Tokens
from ostiary_gateway.testing import FakeClock
from tests.unit.ostiary_gateway.authentication.signed_in_users import Store


@pytest.fixture
def store(clock: FakeClock) -> Store:
    return Store(clock=clock)


@pytest.fixture
def tokens(store: Store, clock: FakeClock) -> Tokens:
    return Tokens(store, clock=clock)


@pytest.fixture
def authenticator(tokens: Tokens, clock: FakeClock) -> TokenAuthenticator:
    return TokenAuthenticator(tokens, clock)
