"""Google Groups keep the contract of a group provider, asked through either of the two APIs."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import trustme

from ostiary.model import UserInfo
from ostiary_gateway.providers.google_groups import GoogleGroups
from ostiary_gateway.testing import FakeClock
from ostiary_gateway.testing.group import GroupContract
from tests.support.google import Google


class TestGoogleGroups(GroupContract):
    """S3, S14, S32, S36."""

    GROUP = "platform@example.com"
    OTHER_GROUP = "security@example.com"
    API = "cloudIdentity"

    @pytest.fixture
    async def provider(self, tmp_path: Path, ca: trustme.CA, clock: FakeClock) -> AsyncIterator[GoogleGroups]:
        ca.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
        with Google(ca).running() as google:
            provider = GoogleGroups(
                key_file=google.write_key(tmp_path / "key.json"),
                subject="admin@example.com",
                api=self.API,
                domains=["example.com"],
                endpoint=google.url,
                ca=tmp_path / "ca.pem",
                clock=clock,
            )
            yield provider
            await provider.close()

    @pytest.fixture
    def member(self) -> UserInfo:
        return UserInfo("alice@example.com")


class TestGoogleGroupsOfTheDirectory(TestGoogleGroups):
    """S14, S36."""

    API = "directory"
