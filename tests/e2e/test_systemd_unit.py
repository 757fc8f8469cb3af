"""The gateway under systemd: what it tells, and the unit of ``deploy/systemd`` with all that it forbids."""

from __future__ import annotations

import os
import re
import signal
import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import trustme

from tests.support import image
from tests.support.gateway import SECONDS, Site, password
from tests.support.service_manager import NotifySocket
from tests.support.systemd import PrivateSystemd
from tests.support.waiting import until

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "deploy/systemd"
UNIT = "ostiary-gateway.service"
# systemd calls 2.0 and less "OK"; half a point of it is the network, which a gateway needs.
EXPOSURE = 2.0
needs_systemd = pytest.mark.needs("systemctl", "unshare", "nsenter", "buildah", "mmdebstrap")


pytestmark = pytest.mark.timeout(image.BUILD_SECONDS)


@pytest.fixture
def site(tmp_path: Path, ca: trustme.CA) -> Site:
    return Site(tmp_path / "gateway", ca)


# --- what systemd is told ---


@pytest.mark.parametrize("workers", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_systemd_is_told_of_start_reload_and_stop_by_the_process_that_it_started(
    site: Site, tmp_path: Path, workers: int
) -> None:
    with NotifySocket.in_folder(tmp_path) as systemd:
        environment = {"NOTIFY_SOCKET": systemd.address}
        with site.serving(environment=environment, listen={"workers": workers, "drain": "7s"}) as gateway:
            started, sender = systemd.receive()
            assert started == {"READY": "1", "STATUS": f"serving on 127.0.0.1:{gateway.port}"}
            # At that moment all workers serve.
            assert gateway.probe("/readyz").status_code == 200
            gateway.signal(signal.SIGHUP)
            assert "RELOADING" in systemd.receive()[0]
            assert systemd.receive()[0] == started
            (site.folder / "gateway.yaml").write_text("{not yaml")
            gateway.signal(signal.SIGHUP)
            assert "RELOADING" in systemd.receive()[0]
            assert systemd.receive()[0]["STATUS"].endswith("; the configuration was not reloaded")
            gateway.stop()
            stopping, stopped_by = systemd.receive()
        assert stopping == {"STOPPING": "1", "EXTEND_TIMEOUT_USEC": "22000000"}
        assert {sender, stopped_by} == {gateway.pid}
        assert systemd.waiting() == []


@pytest.mark.parametrize("workers", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_the_watchdog_is_fed_by_the_main_process(site: Site, tmp_path: Path, workers: int) -> None:
    with NotifySocket.in_folder(tmp_path) as systemd:
        environment = {"NOTIFY_SOCKET": systemd.address, "WATCHDOG_USEC": "50000"}
        with site.serving(environment=environment, listen={"workers": workers}) as gateway:
            assert systemd.receive()[0]["READY"] == "1"
            fed = [systemd.receive() for _ in range(3)]
    assert fed == [({"WATCHDOG": "1"}, gateway.pid)] * 3


# --- the unit ---


@pytest.mark.needs("systemd-analyze")
def test_the_unit_is_locked_down() -> None:
    done = subprocess.run(
        ["systemd-analyze", "security", "--offline=yes", "--no-pager", str(FOLDER / UNIT)],
        capture_output=True,
        text=True,
        env={**os.environ, "LC_ALL": "C.UTF-8"},
    )
    told = re.search(r"Overall exposure level for .*: (\d+\.\d+)", done.stdout)
    assert told is not None, done.stderr
    assert float(told[1]) <= EXPOSURE, done.stdout


@pytest.mark.needs("systemd-analyze")
def test_systemd_understands_every_line_of_the_unit(tmp_path: Path) -> None:
    # A unit that names a program which is missing is wrong, too: it gets one that is here.
    unit = tmp_path / UNIT
    unit.write_text((FOLDER / UNIT).read_text().replace("/opt/ostiary/bin/ostiary-gateway", "/bin/true"))
    done = subprocess.run(["systemd-analyze", "verify", "--man=no", str(unit)], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


# --- both together ---


@pytest.fixture
def systemd(tmp_path: Path) -> Iterator[PrivateSystemd]:
    image.build()
    with PrivateSystemd(tmp_path / "systemd") as systemd:
        install = ("install", "-D", "-m", "0644")
        systemd.run(*install, str(FOLDER / UNIT), f"/etc/systemd/system/{UNIT}")
        systemd.run(*install, str(FOLDER / "ostiary.sysusers.conf"), "/etc/sysusers.d/ostiary.conf")
        systemd.run("systemd-sysusers")
        systemd.run("install", "-d", "-m", "0750", "-g", "ostiary", "/etc/ostiary")
        yield systemd


def configure(systemd: PrivateSystemd, site: Site, **sections: Any) -> None:
    """The folder of the site becomes /etc/ostiary: for its group to read, and nobody else."""
    paths = {"store": {"type": "sqlite", "path": "/var/lib/ostiary/ostiary.db"}}
    site.write_config(audit={"log": {"path": "/var/log/ostiary/audit.log"}}, **paths, **sections)
    systemd.run("cp", "-rT", str(site.folder), "/etc/ostiary")
    systemd.run("chgrp", "-R", "ostiary", "/etc/ostiary")
    systemd.run("chmod", "-R", "u=rwX,g=rX,o=", "/etc/ostiary")


def address(systemd: PrivateSystemd) -> str:
    status = systemd.run("systemctl", "show", "--property=StatusText", "--value", UNIT).stdout
    told = re.match(r"serving on (127\.0\.0\.1:\d+)", status)
    assert told is not None, f"{status}{systemd.log}"
    return told[1]


def sign_in(systemd: PrivateSystemd, site: Site, user: str) -> httpx.Response:
    trust = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    site.ca.configure_trust(trust)
    url = f"https://{address(systemd)}/auth"
    return httpx.get(url, auth=(user, password(user)), verify=trust, timeout=SECONDS, trust_env=False)


@pytest.mark.slow
@needs_systemd
@pytest.mark.parametrize("workers", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_the_gateway_can_do_its_work_with_all_that_the_unit_forbids(
    systemd: PrivateSystemd, site: Site, workers: int
) -> None:
    site.users("alice")
    configure(systemd, site, listen={"workers": workers})
    systemd.run("systemctl", "start", UNIT)
    assert sign_in(systemd, site, "alice").status_code == 200
    status = (systemd.root / "proc" / systemd.main_pid(UNIT) / "status").read_text()
    assert re.search(r"^CapBnd:\t0+$", status, re.MULTILINE)
    assert re.search(r"^Seccomp:\t2$", status, re.MULTILINE)
    # A reload takes up what has changed, and one of a broken file fails where a person sees it.
    site.users("alice", "bob")
    configure(systemd, site, listen={"workers": workers})
    systemd.run("systemctl", "reload", UNIT)
    assert sign_in(systemd, site, "bob").status_code == 200
    (systemd.root / "etc/ostiary/gateway.yaml").write_text("{not yaml")
    assert systemd.run("systemctl", "reload", UNIT, check=False).returncode == 1
    assert sign_in(systemd, site, "alice").status_code == 200
    systemd.run("systemctl", "stop", UNIT)
    result = systemd.run("systemctl", "show", "--property=Result,ExecMainStatus", UNIT).stdout
    assert result.split() == ["Result=success", "ExecMainStatus=0"]


@pytest.mark.slow
@needs_systemd
def test_a_secret_that_only_root_can_read_arrives_as_a_credential(systemd: PrivateSystemd, site: Site) -> None:
    site.users("alice")
    configure(systemd, site, identity=[{"name": "staff", "type": "htpasswd", "path": f"/run/credentials/{UNIT}/users"}])
    secret = systemd.root / "etc/ostiary/users"
    secret.rename(secret.with_name("secret-users"))
    systemd.run("chown", "root:root", "/etc/ostiary/secret-users")
    systemd.run("chmod", "0600", "/etc/ostiary/secret-users")
    drop_in = systemd.root / f"etc/systemd/system/{UNIT}.d/secrets.conf"
    drop_in.parent.mkdir()
    drop_in.write_text("[Service]\nLoadCredential=users:/etc/ostiary/secret-users\n")
    systemd.run("systemctl", "daemon-reload")
    systemd.run("systemctl", "start", UNIT)
    assert sign_in(systemd, site, "alice").status_code == 200


@pytest.mark.slow
@needs_systemd
def test_a_gateway_that_is_killed_comes_back(systemd: PrivateSystemd, site: Site) -> None:
    site.users("alice")
    configure(systemd, site, listen={"workers": 2})
    systemd.run("systemctl", "start", UNIT)
    before = systemd.main_pid(UNIT)
    systemd.run("systemctl", "kill", "--signal=KILL", "--kill-who=main", UNIT)
    # The process first: for a moment after the kill the unit is still called active.
    until(
        lambda: (
            systemd.main_pid(UNIT) not in ("0", before)
            and systemd.run("systemctl", "is-active", UNIT, check=False).stdout == "active\n"
        ),
        f"the unit is active again:\n{systemd.log}",
    )
    assert sign_in(systemd, site, "alice").status_code == 200
