"""The image that ``deploy/image`` builds: what is in it, and a gateway that runs from it with nothing but its files."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import trustme

from tests.support import image
from tests.support.cluster import Cluster
from tests.support.gateway import SECONDS, Site, role
from tests.support.image import CONFIG, ROOT, STATE, USER, ContainerGateway
from tests.support.kdc import PROGRAMS as KDC_PROGRAMS
from tests.support.kdc import REALM, running_kdc
from tests.support.ports import free_port
from tests.support.slow_api import slow_api
from tests.support.wheel import GATEWAY, project_table

pytestmark = [
    pytest.mark.slow,
    pytest.mark.needs("buildah", "podman", "mmdebstrap", "unshare"),
    pytest.mark.timeout(image.BUILD_SECONDS),
    pytest.mark.usefixtures("built"),
]
PODS = "/api/v1/namespaces/team/pods"
STORE = {"type": "sqlite", "path": f"{STATE}/ostiary.db"}
SHELLS = {"sh", "bash", "dash", "busybox", "perl", "apt", "apt-get", "dpkg", "su", "mount", "ldd", "pip", "gcc"}


@pytest.fixture(scope="session")
def built() -> str:
    return image.build()


@pytest.fixture
def site(tmp_path: Path, ca: trustme.CA) -> Site:
    site = Site(tmp_path / "gateway", ca)
    site.users("alice", "bob")
    site.policy(role("team", "pods", User="alice"), role("", SLOW, User="alice"))
    return site


SLOW = {"nonResourceURLs": ["/slow*"], "verbs": ["*"]}


@pytest.fixture
def state(tmp_path: Path) -> Path:
    folder = tmp_path / "state"
    folder.mkdir(mode=0o700)
    image.give_to_user(folder)
    return folder


@pytest.fixture
def cluster(ca: trustme.CA) -> Iterator[Cluster]:
    with Cluster(ca) as cluster:
        cluster.add_namespace("team")
        cluster.add_pod("team", "web")
        yield cluster


# --- what is in it ---


def test_a_runtime_is_told_the_user_the_ports_and_what_to_start() -> None:
    config = image.inspect()
    assert config["User"] == f"{USER}:{USER}"
    assert config["Entrypoint"] == ["/opt/ostiary/bin/ostiary-gateway"]
    assert config["Cmd"] == ["serve", "--config", f"{CONFIG}/gateway.yaml"]
    assert set(config["ExposedPorts"]) == {"8443/tcp", "8444/tcp"}
    assert config["StopSignal"] == "SIGTERM"
    assert config["Labels"]["org.opencontainers.image.version"] == project_table(GATEWAY)["version"]


def test_it_has_no_shell_and_nothing_to_install_with_or_to_change_users_with() -> None:
    program = """
import json, os, stat
programs, changing, writable = [], [], []
for folder, folders, files in os.walk("/"):
    folders[:] = [name for name in folders if os.path.join(folder, name) not in ("/proc", "/sys", "/dev", "/run")]
    for name in [*folders, *files]:
        path = os.path.join(folder, name)
        mode = os.lstat(path).st_mode
        if stat.S_ISLNK(mode):
            continue
        if stat.S_ISREG(mode) and mode & 0o111 and os.path.basename(folder) in ("bin", "sbin"):
            programs.append(name)
        if mode & (stat.S_ISUID | stat.S_ISGID):
            changing.append(path)
        if mode & stat.S_IWOTH:
            writable.append(path)
print(json.dumps([programs, changing, writable]))
"""
    programs, changing, writable = json.loads(image.python(program))
    assert SHELLS.isdisjoint(programs)
    assert "kubectl-ostiary" in programs
    assert changing == []
    assert writable == ["/tmp"]


def test_it_has_exactly_the_locked_libraries() -> None:
    program = """
from importlib.metadata import distributions
for each in distributions():
    print(each.name.lower().replace("_", "-"), each.version)
"""
    installed = dict(row.split() for row in image.python(program).splitlines())
    del installed["ostiary"], installed["ostiary-gateway"]
    locks = (ROOT / "deploy/image/requirements.lock", ROOT / "requirements-built.lock")
    locked = dict(re.findall(r"^([\w.-]+)==([^ ]+)", "\n".join(lock.read_text() for lock in locks), re.MULTILINE))
    assert installed == locked
    # The versions that everything else is tested with.
    tested = dict(re.findall(r"^([\w.-]+)==([^ ]+)", (ROOT / "requirements.lock").read_text(), re.MULTILINE))
    # What has no wheels is in no lock that pip alone can install.
    assert locked.items() - tested.items() <= {(name, locked[name]) for name in ("python-ldap", "gssapi")}


def test_every_provider_that_a_gateway_can_be_configured_with_is_usable() -> None:
    """None of them misses its library: a configuration that works elsewhere works here."""
    program = """
from importlib.metadata import entry_points
types = ("identity", "group", "authorization", "admission", "token_store", "attributes", "audit", "settings")
for type in types:
    for point in entry_points(group=f"ostiary.{type}"):
        point.load()
        print(type, point.name)
import ldap, asyncpg, redis.asyncio, cedarpy, uvloop
import opentelemetry.proto.trace.v1.trace_pb2
"""
    assert "identity ldap\n" in image.python(program)


def test_everything_is_compiled_so_that_a_start_compiles_nothing() -> None:
    program = """
import sys, importlib.util, os
import ostiary_gateway.server.serve, ostiary_gateway.cli.serve
without = [name for name, module in sys.modules.items()
           if getattr(module, "__file__", None) and module.__file__.endswith(".py")
           and not os.path.exists(importlib.util.cache_from_source(module.__file__))]
print(without)
"""
    assert image.python(program) == "[]\n"


# --- what it does ---


def test_the_program_says_its_version() -> None:
    assert image.run("--version").stdout.startswith("ostiary-gateway ")


def test_a_configuration_can_be_checked_before_it_is_served(site: Site) -> None:
    stateless = {"store": {"type": "memory"}, "audit": {"stdout": True}}
    site.write_config(**stateless)
    right = image.run("serve", "--check", folder=site.folder)
    assert (right.returncode, right.stdout) == (0, "gateway.yaml: OK\n"), right.stderr
    site.write_config(**stateless, identity=[{"name": "staff", "type": "htpaswd", "path": "users"}])
    wrong = image.run("serve", "--check", folder=site.folder)
    assert wrong.returncode == 1
    assert "htpasswd" in wrong.stderr


def test_a_store_without_a_volume_is_told_before_anything_is_served(site: Site) -> None:
    site.write_config(store=STORE, audit={"stdout": True})
    done = image.run("serve", "--check", folder=site.folder)
    assert done.returncode == 1
    assert f"the directory {STATE} cannot be written" in done.stderr


@pytest.mark.parametrize("workers", [1, 2])
def test_it_serves_as_a_user_without_rights_on_a_root_that_is_read_only(
    site: Site, state: Path, cluster: Cluster, workers: int
) -> None:
    # Beside the configuration, which is the working directory: neither the program nor its workers import it.
    (site.folder / "ssl.py").write_text("raise SystemExit('imported from the folder of the configuration')")
    upstream = site.impersonating(cluster, health="/readyz")
    sections = {"store": STORE, "audit": {"stdout": True}, "listen": {"workers": workers}, "upstreams": [upstream]}
    with ContainerGateway(site, state, **sections) as gateway:
        token = gateway.login("alice").token
        assert gateway.probe("/livez").status_code == 200
        ready = gateway.probe("/readyz")
        assert ready.status_code == 200, ready.text
        assert gateway.get(PODS, token).json()["items"][0]["metadata"]["name"] == "web"
        assert gateway.get(PODS, gateway.login("bob").token).status_code == 403
        for process in gateway.processes():
            status = process.joinpath("status").read_text()
            assert re.search(rf"^Uid:\t{USER}\t{USER}\t{USER}\t{USER}$", status, re.MULTILINE)
            assert re.search(r"^CapBnd:\t0+$", status, re.MULTILINE)
            assert re.search(r"^NoNewPrivs:\t1$", status, re.MULTILINE)
            mounts = process.joinpath("mounts").read_text().splitlines()
            root = next(row.split() for row in mounts if row.split()[1] == "/")
            assert "ro" in root[3].split(",")
    # Another container with the same state: nobody is signed out by an update of the image.
    with ContainerGateway(site, state, **sections) as gateway:
        assert gateway.get(PODS, token).status_code == 200


@pytest.mark.needs(*KDC_PROGRAMS)
def test_it_signs_people_in_with_kerberos_and_a_keytab_alone(site: Site, state: Path, tmp_path: Path) -> None:
    """No krb5.conf and no KDC is needed to judge a ticket, and no file is written for it."""
    (tmp_path / "kdc").mkdir()
    port = free_port()
    with running_kdc(tmp_path / "kdc") as kdc:
        kdc.add_person("alice")
        kdc.add_service("HTTP/localhost")
        keytab = site.folder / "gateway.keytab"
        keytab.write_bytes(kdc.keytab("HTTP/localhost").read_bytes())
        staff = {"name": "staff", "type": "kerberos", "keytab": keytab.name, "realms": [{"name": REALM}]}
        sections = {"listen": {"address": f"127.0.0.1:{port}"}, "externalURL": f"https://localhost:{port}"}
        with ContainerGateway(
            site, state, store=STORE, audit={"stdout": True}, identity=[staff], **sections
        ) as gateway:
            header = kdc.negotiate(kdc.kinit("alice"), "localhost")
            answer = gateway.get("/auth/staff", headers={"Authorization": header})
    assert (answer.status_code, answer.json()["user"]) == (200, "alice")


def test_sigterm_lets_a_request_end_and_the_container_exits_with_0(site: Site, state: Path) -> None:
    with (
        slow_api() as (slow, upstream),
        ContainerGateway(site, state, store=STORE, audit={"stdout": True}, upstreams=[upstream]) as gateway,
        ThreadPoolExecutor(1) as pool,
    ):
        answer = pool.submit(gateway.get, "/slow/report", gateway.login("alice").token)
        assert slow.asked.wait(SECONDS)
        gateway.signal(signal.SIGTERM)
        gateway.wait_until_refusing()
        slow.may_answer.set()
        assert answer.result(SECONDS).text == "done"
        gateway.wait()


def test_without_a_configuration_it_ends_and_names_the_file() -> None:
    """Not the built-in configuration, with which everybody may do everything."""
    done = image.run()
    assert done.returncode == 1
    assert f"{CONFIG}/gateway.yaml" in done.stderr
