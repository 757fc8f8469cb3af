"""What the tests share: throw-away authorities, an API server, a plugin, a kubeconfig that joins them.

A test that needs a program says so with ``needs``; `tests/support/tiers.py` says what happens without it.
"""

from __future__ import annotations

import gc
import os
import pty
import signal
from base64 import b64encode
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import hypothesis
import pytest
import trustme

from ostiary.client.connection import Connection, connect
from ostiary_gateway.testing import FakeClock
from tests.support.apiserver import ApiServer
from tests.support.device_keys.softhsm import PIN as SOFTHSM_PIN
from tests.support.device_keys.softhsm import SoftToken
from tests.support.device_keys.softhsm import module as softhsm_module
from tests.support.device_keys.swtpm import PROVIDERS as TPM_PROVIDERS
from tests.support.device_keys.swtpm import SoftTpm
from tests.support.device_keys.swtpm import soft_tpm as running_tpm
from tests.support.plugins import PluginScript, exec_user, write_kubeconfig
from tests.support.postgresql import PostgresServer, folder_for_servers, programs_of_18, running
from tests.support.tiers import (
    missing,
    pytest_addoption,
    pytest_collection_modifyitems,
    pytest_configure,
    pytest_runtest_setup,
)

__all__ = ["pytest_addoption", "pytest_collection_modifyitems", "pytest_configure", "pytest_runtest_setup"]

Connect = Callable[..., Connection]

# No test depends on how fast a shared machine is, so no example of a property is too slow, nor is making one.
hypothesis.settings.register_profile(
    "any machine", hypothesis.settings(), deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("any machine")


# A shell that starts the suite in the background makes it ignore SIGINT, and every program that a test starts with it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_finish() -> None:
    # Modules and thousands of test items stay until the end: no collection has to look at them, ours or a test's.
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def no_settings_of_the_developer(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Tests see no kubeconfig, kuberc or proxy of whoever runs them."""
    monkeypatch.setenv("HOME", str(tmp_path_factory.mktemp("home")))
    for name in (
        "KUBECONFIG",
        "KUBERC",
        "KUBECTL_KUBERC",
        "KUBERNETES_SERVICE_HOST",
        "KUBERNETES_SERVICE_PORT",
    ):
        monkeypatch.delenv(name, raising=False)
    for name in ("http_proxy", "https_proxy", "no_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture(scope="session")
def ca() -> trustme.CA:
    return trustme.CA()


@pytest.fixture(scope="session")
def ca_data(ca: trustme.CA) -> str:
    """The authority as ``certificate-authority-data``."""
    return b64encode(ca.cert_pem.bytes()).decode()


@pytest.fixture(scope="session")
def postgresql_15() -> Iterator[PostgresServer]:
    """One for all tests of a process: each uses a schema or a database of its own, and leaves the server as it is."""
    with running() as server:
        yield server


@pytest.fixture(scope="session")
def postgresql_18() -> Iterator[PostgresServer]:
    """The same with the newest version that can be had."""
    with folder_for_servers() as folder, running(programs_of_18(folder)) as server:
        yield server


@pytest.fixture(scope="session")
def soft_token(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SoftToken]:
    """One for all tests of a process, because its library reads its settings once. Its PIN is in the file ``pin``."""
    if not softhsm_module().exists():
        missing("softhsm2")
    token = SoftToken(tmp_path_factory.mktemp("softhsm"))
    token.init()
    token.generate("ec", "EC:prime256v1", "01")
    token.generate("rsa", "rsa:2048", "02")
    # Their tokens are spoiled by the tests.
    for label in ("wrong-pin", "removed"):
        spare = replace(token, label=label)
        spare.init()
        spare.generate("ec", "EC:prime256v1", "01")
    (token.folder / "pin").write_text(f"{SOFTHSM_PIN}\n")
    os.environ["SOFTHSM2_CONF"] = token.environ["SOFTHSM2_CONF"]
    yield token
    del os.environ["SOFTHSM2_CONF"]


@pytest.fixture(scope="session")
def soft_tpm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SoftTpm]:
    """One for all tests of a process: keys at 0x81000001 (EC) and 0x81000002 (RSA)."""
    if not any(path.exists() for path in TPM_PROVIDERS):
        missing("tpm2-openssl")
    with running_tpm(tmp_path_factory.mktemp("tpm")) as tpm:
        tpm.create("0x81000001", "ecc256:ecdsa")
        tpm.create("0x81000002", "rsa2048")
        os.environ["TPM2OPENSSL_TCTI"] = tpm.tcti
        yield tpm
        del os.environ["TPM2OPENSSL_TCTI"]


@pytest.fixture
def api(ca: trustme.CA) -> Iterator[ApiServer]:
    with ApiServer(ca).running() as server:
        yield server


@pytest.fixture
def plugin(tmp_path: Path) -> PluginScript:
    return PluginScript(tmp_path / "plugin").answer(token="token-1")


@pytest.fixture
def client_certificate(ca: trustme.CA) -> Callable[[str], tuple[str, str]]:
    """Issue a client certificate: name -> (certificate PEM, key PEM)."""

    def issue(name: str) -> tuple[str, str]:
        leaf = ca.issue_cert(f"{name}@example.test", common_name=name)
        return "".join(pem.bytes().decode() for pem in leaf.cert_chain_pems), leaf.private_key_pem.bytes().decode()

    return issue


@pytest.fixture
def connect_to(api: ApiServer, plugin: PluginScript, ca_data: str, tmp_path: Path, clock: FakeClock) -> Connect:
    """`connect` to the test's API server; by default as the user of the test's plugin, with the test's clock."""

    def make(
        *,
        user: dict[str, Any] | None = None,
        cluster: dict[str, Any] | None = None,
        server: str | None = None,
        **options: Any,
    ) -> Connection:
        kubeconfig = write_kubeconfig(
            tmp_path / "kubeconfig",
            server=server or api.url,
            user=user if user is not None else exec_user(plugin.path),
            cluster={"certificate-authority-data": ca_data, **(cluster or {})},
        )
        options.setdefault("clock", clock)
        return connect(kubeconfig, **options)

    return make


@pytest.fixture
def terminal() -> Iterator[int]:
    """Our own standard input is a terminal; gives the other end of it."""
    person, ours = pty.openpty()
    before = os.dup(0)
    os.dup2(ours, 0)
    yield person
    os.dup2(before, 0)
    for descriptor in (person, ours, before):
        os.close(descriptor)


@pytest.fixture
def no_terminal() -> Iterator[None]:
    before, null = os.dup(0), os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    yield
    os.dup2(before, 0)
    os.close(before)
    os.close(null)
