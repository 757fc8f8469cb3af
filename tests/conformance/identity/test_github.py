"""GitHub keeps the contract of an identity provider; the suite's person never gets past its page."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import trustme

from ostiary_gateway.interfaces.identity import LoginRequest
from ostiary_gateway.providers.github.identity import GitHubIdentity
from ostiary_gateway.testing import FakeClock
from ostiary_gateway.testing.identity import IdentityContract
from tests.support.github import GitHub


class TestGitHubIdentity(IdentityContract):
    """S3, S26, S29."""

    @pytest.fixture
    async def provider(self, tmp_path: Path, ca: trustme.CA, clock: FakeClock) -> AsyncIterator[GitHubIdentity]:
        ca.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
        (tmp_path / "secret").write_text(GitHub.client_secret)
        with GitHub(ca).running() as github:
            provider = GitHubIdentity(
                client_id=github.client_id,
                client_secret_file=tmp_path / "secret",
                hostname=github.host,
                ca=tmp_path / "ca.pem",
                clock=clock,
            )
            yield provider
            await provider.close()

    @pytest.fixture
    def wrong_proof(self) -> LoginRequest:
        return LoginRequest("POST", "/auth", form=(("username", "octocat"), ("password", "correct horse")))
