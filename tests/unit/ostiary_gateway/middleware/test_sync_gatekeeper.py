"""The gatekeeper for threads, and for servers that fork."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from ostiary.errors import ConfigurationError
from ostiary_gateway.middleware import AccessRefused, Gatekeeper, SyncGatekeeper
from tests.support.scripted_gateway import ScriptedGateway


@pytest.fixture
def gateway() -> Iterator[ScriptedGateway]:
    with ScriptedGateway().running() as served:
        yield served


@pytest.fixture
def gatekeeper(gateway: ScriptedGateway, tmp_path: Path) -> Iterator[SyncGatekeeper]:
    settings = gateway.settings(tmp_path)
    with SyncGatekeeper(lambda: Gatekeeper.from_mapping(settings, directory=tmp_path)) as gatekeeper:
        yield gatekeeper


def test_a_mistake_is_told_at_once(tmp_path: Path) -> None:
    (tmp_path / "backend.yaml").write_text("kind: Backend\n")
    with pytest.raises(ConfigurationError):
        SyncGatekeeper.from_file(tmp_path / "backend.yaml")


def test_without_a_middleware(gateway: ScriptedGateway, gatekeeper: SyncGatekeeper) -> None:
    bearer = gatekeeper.authenticate(f"Bearer {gateway.add('ann')}")
    gatekeeper.require(bearer, "get", path="/x")
    with pytest.raises(AccessRefused):
        gatekeeper.authenticate(None)


def test_it_can_be_closed_and_begins_again(gateway: ScriptedGateway, gatekeeper: SyncGatekeeper) -> None:
    token = gateway.add("ann")
    assert gatekeeper.authenticate(f"Bearer {token}").user.username == "ann"
    gatekeeper.close()
    gatekeeper.close()
    assert gatekeeper.authenticate(f"Bearer {token}").user.username == "ann"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
@pytest.mark.filterwarnings("ignore:This process.*is multi-threaded:DeprecationWarning")
def test_a_forked_server_has_a_gatekeeper_of_its_own(gateway: ScriptedGateway, gatekeeper: SyncGatekeeper) -> None:
    token = gateway.add("ann")
    assert gatekeeper.authenticate(f"Bearer {token}").user.username == "ann"
    child = os.fork()
    if not child:
        code = 1
        try:
            code = 0 if gatekeeper.authenticate(f"Bearer {token}").user.username == "ann" else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
