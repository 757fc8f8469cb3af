"""GitHub's organisations and teams keep the contract of a group provider."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import trustme

from ostiary.model import UserInfo
from ostiary_gateway.providers.github.groups import GitHubGroups
from ostiary_gateway.testing import FakeClock
from ostiary_gateway.testing.group import GroupContract
from tests.support.github import GitHub


class TestGitHubGroups(GroupContract):
    """S3, S14, S32, S36."""

    GROUP = "acme:platform"
    OTHER_GROUP = "acme:security"

    @pytest.fixture
    async def provider(self, tmp_path: Path, ca: trustme.CA, clock: FakeClock) -> AsyncIterator[GitHubGroups]:
        ca.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
        (tmp_path / "token").write_text(GitHub.operator_token)
        with GitHub(ca).running() as github:
            provider = GitHubGroups(
                groups_from=["acme", "a"],
                token_file=tmp_path / "token",
                hostname=github.host,
                ca=tmp_path / "ca.pem",
                clock=clock,
            )
            yield provider
            await provider.close()

    @pytest.fixture
    def member(self) -> UserInfo:
        return UserInfo("octocat", uid="583231")


class TestGitHubOrganizations(TestGitHubGroups):
    """S14, S36."""

    GROUP = "acme"
    OTHER_GROUP = "a"
