"""Fixtures of the tests of /auth."""

from __future__ import annotations

from pathlib import Path

import bcrypt
import pytest

from ostiary.model import UserInfo
from tests.unit.ostiary_gateway.signing_in import (
    Browser,
    Make,
    Revalidating,
    SaysGroups,
    members,
)


@pytest.fixture
def users(tmp_path: Path) -> Path:
    path = tmp_path / "users"
    path.write_text("alice:" + bcrypt.hashpw(b"pw", bcrypt.gensalt(4)).decode())
    return path


@pytest.fixture
async def alice(make: Make) -> Browser:
    browser = Browser(make(Revalidating(UserInfo("alice")), groups=[SaysGroups(members("developers"))]))
    await browser.sign_in()
    return browser
