"""A group file keeps the contract of a group provider."""

from __future__ import annotations

from pathlib import Path

import pytest

from ostiary.model import UserInfo
from ostiary_gateway.providers.file import FileGroups
from ostiary_gateway.testing import FakeClock
from ostiary_gateway.testing.group import GroupContract


class TestFileGroups(GroupContract):
    """S3, S14, S32, S36."""

    @pytest.fixture
    def provider(self, tmp_path: Path, clock: FakeClock) -> FileGroups:
        path = tmp_path / "groups.yaml"
        path.write_text("developers: [alice]\noperators: [bob]\n")
        return FileGroups(path=path, clock=clock)

    @pytest.fixture
    def member(self) -> UserInfo:
        return UserInfo("alice")
