"""The providers whose policy lies in files, and the one without a policy, through the shipped suite."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from ostiary.model import Attributes, RequestInfo, UserInfo
from ostiary_gateway.providers.allow_all import AllowAllAuthorization
from ostiary_gateway.providers.cedar import CedarAuthorization
from ostiary_gateway.testing import FakeClock
from ostiary_gateway.testing.authorization import AuthorizationContract

POD = RequestInfo("get", "GET", "/api/v1/namespaces/dev/pods/web", True, "", "", "v1", "dev", "pods", "", "web")


class TestAllowAll(AuthorizationContract):
    """S2, S15."""

    @pytest.fixture
    def provider(self) -> AllowAllAuthorization:
        return AllowAllAuthorization()

    @pytest.fixture
    def allowed(self) -> Attributes:
        return Attributes(UserInfo("anybody"), POD)


class FromFiles(AuthorizationContract):
    name: str
    policy: str
    more: str

    @pytest.fixture
    def file(self, tmp_path: Path) -> Path:
        (tmp_path / self.name).write_text(self.policy)
        return tmp_path / self.name

    @pytest.fixture
    def allowed(self) -> Attributes:
        return Attributes(UserInfo("alice", groups=("dev",)), POD)

    @pytest.fixture
    def refused(self) -> Attributes:
        return Attributes(UserInfo("bob", groups=("ops",)), POD)

    @pytest.fixture
    def change_policy(self, file: Path, clock: FakeClock) -> Callable[[], None]:
        def change() -> None:
            file.write_text(self.policy + self.more)
            clock.advance(1)

        return change


class TestCedar(FromFiles):
    """S2, S13, S35, S45."""

    name = "policy.cedar"
    policy = """
permit(principal in Group::"dev", action in [Action::"get", Action::"list"], resource in Namespace::"dev");
permit(principal == User::"a,b", action, resource) when { resource.resource == "pods" };
forbid(principal, action, resource is Path) unless { principal in Group::"ops" };
"""
    more = 'permit(principal == User::"bob", action, resource);\n'

    @pytest.fixture
    def provider(self, file: Path, clock: FakeClock) -> CedarAuthorization:
        return CedarAuthorization([file.parent], clock=clock)
