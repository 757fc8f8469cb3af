"""One cluster of a kubeconfig: when it is read again, and what is told before a client gets a token."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest
import trustme

from ostiary import kubeconfig as kubeconfigs
from ostiary.errors import ConfigurationError, KeyUnusable, PluginNotInteractive, TransportError
from ostiary_gateway.local_proxy.cluster import ConnectedCluster
from ostiary_gateway.testing import FakeClock
from tests.support.connect_listener import connect_record
from tests.support.plugins import exec_user, write_kubeconfig

TOKEN = {"token": "real-token"}


def cluster_of(kubeconfig: Path, clock: FakeClock, *, has_terminal: bool = False) -> ConnectedCluster:
    loop = asyncio.get_running_loop()
    return ConnectedCluster(connect_record(kubeconfig), loop, clock, has_terminal=has_terminal)


async def test_a_changed_kubeconfig_makes_a_new_route_and_an_equal_one_does_not(
    tmp_path: Path, clock: FakeClock
) -> None:
    kubeconfig = write_kubeconfig(tmp_path / "config", server="https://one.example", user=TOKEN)
    cluster = cluster_of(kubeconfig, clock)
    first = cluster.route()
    assert cluster.route() is first
    write_kubeconfig(kubeconfig, server="https://two.example", user=TOKEN)
    assert cluster.route() is not first
    assert cluster.server == "https://two.example"
    # The old one has no connection left.
    cluster.tick(0)
    assert cluster.route().access.server == "https://two.example"


async def test_a_kubeconfig_that_was_broken_is_told_and_not_served_from_memory(
    tmp_path: Path, clock: FakeClock
) -> None:
    kubeconfig = write_kubeconfig(tmp_path / "config", server="https://one.example", user=TOKEN)
    cluster = cluster_of(kubeconfig, clock)
    cluster.route()
    kubeconfig.write_text("contexts: 7")
    with pytest.raises(ConfigurationError):
        cluster.route()
    kubeconfig.unlink()
    with pytest.raises(ConfigurationError):
        await cluster.check()


async def test_a_plugin_that_must_ask_is_told_how_it_can(tmp_path: Path, clock: FakeClock) -> None:
    user = exec_user("/bin/true", mode="Always")
    kubeconfig = write_kubeconfig(tmp_path / "config", server="https://one.example", user=user)
    with pytest.raises(PluginNotInteractive) as raised:
        await cluster_of(kubeconfig, clock).check()
    assert "--foreground" in str(raised.value.hint)


async def test_a_certificate_that_cannot_be_used_is_told_before_there_is_a_token(
    tmp_path: Path, clock: FakeClock, ca: trustme.CA
) -> None:
    (tmp_path / "ca.pem").write_text("no certificate")
    cluster = {"certificate-authority": str(tmp_path / "ca.pem")}
    kubeconfig = write_kubeconfig(tmp_path / "config", server="https://one.example", user=TOKEN, cluster=cluster)
    with pytest.raises(TransportError):
        await cluster_of(kubeconfig, clock).check()


async def test_a_rotated_certificate_is_used_for_the_next_connection(
    tmp_path: Path, clock: FakeClock, ca: trustme.CA
) -> None:
    ca.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    cluster_entry = {"certificate-authority": str(tmp_path / "ca.pem")}
    kubeconfig = write_kubeconfig(tmp_path / "config", server="https://one.example", user=TOKEN, cluster=cluster_entry)
    cluster = cluster_of(kubeconfig, clock)
    await cluster.check()
    first = cluster.route().pool.address
    await cluster.check()
    assert cluster.route().pool.address is first
    # The file of the authorities is looked at again after a while.
    trustme.CA().cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    clock.advance(minutes=6)
    await cluster.check()
    assert cluster.route().pool.address.tls is not first.tls


async def test_a_kubeconfig_that_is_written_while_it_is_read_is_read_again(
    tmp_path: Path, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    kubeconfig = write_kubeconfig(tmp_path / "config", server="https://one.example", user=TOKEN)
    load = kubeconfigs.load

    def load_then_write(**options: object) -> kubeconfigs.Kubeconfig:
        config = load(**options)  # type: ignore[arg-type]
        write_kubeconfig(kubeconfig, server="https://three.example", user=TOKEN)
        return config

    monkeypatch.setattr(kubeconfigs, "load", load_then_write)
    cluster = cluster_of(kubeconfig, clock)
    cluster.route()
    monkeypatch.undo()
    assert cluster.route().access.server == "https://three.example"


async def test_the_event_loop_goes_on_while_a_key_is_opened(tmp_path: Path, clock: FakeClock) -> None:
    """The signing command waits until the loop lets it go on."""
    fifo, command = tmp_path / "fifo", tmp_path / "signer"
    os.mkfifo(fifo)
    command.write_text(f"#!/bin/sh\nread line < {fifo}\nexit 1\n")
    command.chmod(0o755)
    trustme.CA().issue_cert("dev").cert_chain_pems[0].write_to_path(str(tmp_path / "dev.pem"))
    user = {
        "client-certificate": str(tmp_path / "dev.pem"),
        "extensions": [{"name": "ostiary.dev/client-key", "extension": {"key": f"exec:{command}"}}],
    }
    kubeconfig = write_kubeconfig(tmp_path / "config", server="https://one.example", user=user)
    check = asyncio.create_task(cluster_of(kubeconfig, clock).check())
    await asyncio.sleep(0)
    # In a loop that waits for the key, the command would have timed out before this is written.
    writer = os.open(fifo, os.O_RDWR)
    os.write(writer, b"go\n")
    with pytest.raises(KeyUnusable, match="failed with exit code 1"):
        await check
    os.close(writer)
