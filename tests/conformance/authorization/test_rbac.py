"""The rbac provider keeps what every authorization provider keeps."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from ostiary.model import Attributes, RequestInfo, UserInfo
from ostiary_gateway.providers.rbac import RbacAuthorization
from ostiary_gateway.testing.authorization import AuthorizationContract

POLICY = """\
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: readers, namespace: dev}
roleRef: {kind: ClusterRole, name: ROLE}
subjects: [{kind: User, name: alice}, {kind: Group, name: dev}]
"""


def ask(verb: str) -> Attributes:
    request = RequestInfo(
        verb, "GET", "", is_resource=True, api_version="v1", namespace="dev", resource="pods", name="web"
    )
    return Attributes(UserInfo("alice"), request)


class TestRbacAuthorization(AuthorizationContract):
    @pytest.fixture
    def file(self, tmp_path: Path) -> Path:
        path = tmp_path / "policy.yaml"
        path.write_text(POLICY.replace("ROLE", "view"))
        return path

    @pytest.fixture
    def provider(self, file: Path) -> RbacAuthorization:
        return RbacAuthorization([file], watch=False)

    @pytest.fixture
    def allowed(self) -> Attributes:
        return ask("get")

    @pytest.fixture
    def refused(self) -> Attributes:
        return ask("delete")

    @pytest.fixture
    def change_policy(self, file: Path, provider: RbacAuthorization) -> Callable[[], bool]:
        def change() -> bool:
            file.write_text(POLICY.replace("ROLE", "edit"))
            return provider.check_now()

        return change
