"""How long a plugin's answer is kept: by its own word alone, and never beyond the process."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path

import jwt
import pytest
import trustme

from ostiary.client.authenticator import Authenticator
from ostiary.client.exec.plugin import ExecPlugin
from ostiary.kubeconfig import ExecConfig
from ostiary.wire.client_authentication import V1
from ostiary_gateway.testing import FakeClock
from tests.support.apiserver import ApiServer
from tests.support.plugins import PluginScript, exec_user, write_kubeconfig

Issue = Callable[[str], tuple[str, str]]
ROOT = Path(__file__).parents[4]
ONE_REQUEST = """
import sys
from ostiary import connect
with connect(sys.argv[1]).httpx() as client:
    print(client.get("/version").status_code)
"""


@pytest.fixture
def authenticator(plugin: PluginScript, clock: FakeClock) -> Authenticator:
    config = ExecConfig(api_version=V1, command=str(plugin.path), interactive_mode="Never")
    return Authenticator(ExecPlugin(config, user="dev"), clock=clock)


def test_a_certificate_that_is_still_valid_is_replaced_when_its_answer_has_expired(
    authenticator: Authenticator, plugin: PluginScript, clock: FakeClock, client_certificate: Issue
) -> None:
    """E44."""
    old, new = client_certificate("old"), client_certificate("new")
    plugin.answer(certificate=old[0], key=old[1], expires_at=clock.now() + timedelta(minutes=10))
    first = authenticator.get().certificate
    assert first is not None
    assert first.not_after is not None
    plugin.answer(certificate=new[0], key=new[1])
    clock.advance(minutes=11)
    assert first.not_after > clock.now()
    second = authenticator.get().certificate
    assert second is not None
    assert second.chain_pem == new[0]
    assert plugin.runs == 2


def test_no_expiry_is_read_out_of_a_token(authenticator: Authenticator, plugin: PluginScript, clock: FakeClock) -> None:
    """E45."""
    expired = jwt.encode({"exp": clock.now() - timedelta(hours=1)}, "k" * 32, algorithm="HS256")
    plugin.answer(token=expired)
    first = authenticator.get()
    clock.advance(hours=1)
    assert authenticator.get() is first
    assert plugin.runs == 1


def test_no_expiry_is_read_out_of_a_certificate(
    authenticator: Authenticator, plugin: PluginScript, ca: trustme.CA, clock: FakeClock
) -> None:
    """E45."""
    leaf = ca.issue_cert("dev@example.test", not_before=datetime(2020, 1, 1), not_after=datetime(2021, 1, 1))
    chain, key = leaf.cert_chain_pems[0].bytes().decode(), leaf.private_key_pem.bytes().decode()
    plugin.answer(certificate=chain, key=key)
    first = authenticator.get()
    assert first.certificate is not None
    assert first.certificate.not_after is not None
    assert first.certificate.not_after < clock.now()
    assert authenticator.get() is first
    assert plugin.runs == 1


def test_the_next_process_runs_the_plugin_again(
    api: ApiServer, plugin: PluginScript, ca_data: str, tmp_path: Path
) -> None:
    """E13."""
    kubeconfig = write_kubeconfig(
        tmp_path / "config",
        server=api.url,
        user=exec_user(plugin.path),
        cluster={"certificate-authority-data": ca_data},
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "HOME": str(tmp_path), "TMPDIR": str(tmp_path)}
    for runs in (1, 2):
        done = subprocess.run(
            [sys.executable, "-c", ONE_REQUEST, str(kubeconfig)],
            env=environment,
            capture_output=True,
            text=True,
            timeout=100,
        )
        assert (done.returncode, done.stdout) == (0, "200\n"), done.stderr
        assert plugin.runs == runs
