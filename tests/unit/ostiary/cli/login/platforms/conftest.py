"""No platform of the machine that runs the tests, and a gateway that exchanges tokens."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import trustme

from ostiary.cli import cached_workload_token
from ostiary.cli.login.platforms import sources as find
from ostiary.cli.login.platforms import sources as kubernetes
from tests.support.signin_server import SigninServer

VARIABLES = (
    "GITHUB_ACTIONS",
    "GITLAB_CI",
    "ACTIONS_ID_TOKEN_REQUEST_URL",
    "ACTIONS_ID_TOKEN_REQUEST_TOKEN",
    "OSTIARY_ID_TOKEN",
    "OSTIARY_IDENTITY_TOKEN_FILE",
    "OSTIARY_SERVER",
    "SPIFFE_ENDPOINT_SOCKET",
    "KUBERNETES_SERVICE_HOST",
    "KUBERNETES_SERVICE_PORT",
    "KUBERNETES_EXEC_INFO",
)


@pytest.fixture(autouse=True)
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    for module in (cached_workload_token, kubernetes):
        monkeypatch.setattr(module, "PROJECTED_TOKEN", str(tmp_path / "projected"))
        monkeypatch.setattr(module, "POD_TOKEN", str(tmp_path / "pod-token"))
    assert find.LOOKED_FOR


@pytest.fixture
def server(ca: trustme.CA) -> Iterator[SigninServer]:
    with SigninServer(ca).running() as running:
        yield running


@pytest.fixture
def authority(ca: trustme.CA, tmp_path: Path) -> str:
    ca.cert_pem.write_to_path(str(tmp_path / "authority.pem"))
    return str(tmp_path / "authority.pem")
