"""What several sections must agree on follows from what providers declare, whoever wrote them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ostiary.errors import ConfigurationError
from ostiary.gateway.config import load, warnings
from ostiary.gateway.config.rules import is_open_to_all
from ostiary.gateway.config.settings import GatewayConfig
from tests.unit.gateway import acme, foreign

CONFIG = """
apiVersion: ostiary.dev/v1
kind: Gateway
store: {type: %s}
identity: [{name: people, type: %s}]
authorization: {chain: [{name: all, type: %s}]}
listen: {address: "%s", workers: %d, insecure: true}
"""


@pytest.fixture(scope="module", autouse=True)
def foreign_package(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        acme.install(tmp_path_factory.mktemp("site"), patch, foreign.ENTRY_POINTS, package="foreign")
        yield


def read(
    directory: Path,
    *,
    store: str = "memory",
    identity: str = "single_user",
    authorization: str = "allow_all",
    address: str = "127.0.0.1:8443",
    workers: int = 1,
    more: str = "",
) -> GatewayConfig:
    path = directory / "gateway.yaml"
    path.write_text(CONFIG % (store, identity, authorization, address, workers) + more)
    return load(path)


def places(error: ConfigurationError) -> list[str]:
    return [problem.place.path for problem in error.problems]


@pytest.mark.parametrize("store", ["memory", "dictionary"])
def test_several_workers_need_a_store_that_says_it_can_be_shared(tmp_path: Path, store: str) -> None:
    with pytest.raises(ConfigurationError) as raised:
        read(tmp_path, store=store, workers=2)
    (problem,) = raised.value.problems
    assert problem.message == f'several workers cannot share the store "{store}": it does not say that processes can'
    assert (problem.place.path, problem.hint) == ("store", "use the type sqlite, or one worker")


def test_several_workers_may_share_a_foreign_store_that_says_so(tmp_path: Path) -> None:
    assert read(tmp_path, store="shared", workers=2).listen.workers == 2


@pytest.mark.parametrize(("store", "lost"), [("memory", True), ("dictionary", True), ("shared", False)])
def test_a_store_that_does_not_say_it_survives_a_restart_is_warned_of(tmp_path: Path, store: str, lost: bool) -> None:
    found = warnings(read(tmp_path, store=store))
    assert ("sessions are kept in memory: a restart ends them all" in found) is lost


@pytest.mark.parametrize("identity", ["single_user", "anybody"])
@pytest.mark.parametrize("authorization", ["allow_all", "everything"])
def test_no_proof_and_no_refusal_open_the_gateway_to_all(tmp_path: Path, identity: str, authorization: str) -> None:
    assert is_open_to_all(read(tmp_path, identity=identity, authorization=authorization))
    with pytest.raises(ConfigurationError) as raised:
        read(tmp_path, identity=identity, authorization=authorization, address="0.0.0.0:8443")
    assert "listen" in places(raised.value)


def test_a_chain_that_allows_everything_is_warned_of_by_its_type(tmp_path: Path) -> None:
    (tmp_path / "people").write_text("")
    config = read(tmp_path, identity="htpasswd, path: people", authorization="everything")
    assert "everybody who can sign in may do everything: the authorization chain has everything" in warnings(config)


def test_a_foreign_provider_that_needs_certificates_gets_them_asked_for(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError) as raised:
        read(tmp_path, identity="by_certificate")
    assert places(raised.value) == ["identity[0].type"]


def test_a_foreign_mapper_may_read_kubernetes_paths(tmp_path: Path) -> None:
    upstreams = "upstreams: [{name: a, server: 'https://a.test', attributes: %s, identity: none, tokenFile: token}]\n"
    (tmp_path / "token").write_text("secret")
    assert read(tmp_path, more=upstreams % "cluster").upstreams[0].is_kubernetes
    assert not read(tmp_path, more=upstreams % "http").upstreams[0].is_kubernetes
