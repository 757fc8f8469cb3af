"""README, tutorials and how-to pages, followed from top to bottom in an empty folder, with the packages from wheels.

What a page takes for granted, because it is about a cluster, an identity system or a registry that the reader has, is
set up by its entry in `WORLDS`. Everything else must be on the page itself.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import ssl
import subprocess
import sys
import tempfile
from base64 import b64encode
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import trustme
from _pytest.mark import ParameterSet

from tests.support import image, offline_pip
from tests.support.apiserver import ApiServer
from tests.support.cluster import Cluster
from tests.support.collector import collecting
from tests.support.connect_desk import certificate_user
from tests.support.google import Google
from tests.support.issuer import ec_key, public
from tests.support.kdc import PROGRAMS as KDC_PROGRAMS
from tests.support.kdc import running_kdc
from tests.support.kubectl import find_kubectl
from tests.support.plugins import PluginScript, exec_user, write_kubeconfig
from tests.support.postgresql import PASSWORD, running
from tests.support.systemd import PrivateSystemd
from tests.support.tiers import missing
from tests.support.walkthrough import ROOT, Command, Walk, on_free_ports, sections, steps
from tests.support.wheel import GATEWAY, build, install_with_extras

PAGES = [
    ROOT / "README.md",
    *sorted((ROOT / "docs/tutorial").glob("*.md")),
    *sorted((ROOT / "docs/how-to").glob("*.md")),
]
# Followed in tests/interop, with a real API server, as far as that goes without nodes.
NEEDS_A_CLUSTER = {"docs/how-to/operate.md", "docs/how-to/run-replicas-in-kubernetes.md"}
# Pages whose YAML other tests read and use.
READ_BY_TESTS = {
    "docs/how-to/all-my-clusters.md": "test_docs_settings.py",
    "docs/how-to/keep-keys-in-hardware.md": "test_device_keys_page.py",
    "docs/how-to/limit-what-teams-create.md": "test_object_quota.py",
    "docs/how-to/meet-the-slos.md": "test_deploy_client_slo.py",
    "docs/how-to/require-a-second-factor.md": "test_docs_settings.py",
}
# Advice, and what is typed on other systems: tests/interop does that in Wine.
NOTHING_TO_TYPE_HERE = {"docs/how-to/best-practices-for-credentials.md", "docs/how-to/use-it-on-windows-and-macos.md"}
# Of the programs that pages use: which are not everywhere.
PROGRAMS = {"curl", "htpasswd", "openssl"}


def followed() -> Iterator[ParameterSet]:
    """README and tutorials are followed in every run; the how-to pages, which are many, in `make test-all`."""
    for page in PAGES:
        for name, text in sections(page):
            if any(steps(text)):
                typed = " ".join(step.line for step in steps(text) if isinstance(step, Command))
                needs = pytest.mark.needs(*sorted(PROGRAMS & set(re.findall(r"\w+", typed))))
                yield pytest.param(name, text, id=name, marks=[needs, pytest.mark.slow] if "how-to" in name else needs)


@dataclass
class World:
    """What surrounds a reader: addresses that stand for others, variables, and what has to be ended."""

    folder: Path
    authority: trustme.CA
    addresses: dict[str, str] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)
    # How the reader's shell is started, if not here.
    inside: list[str] = field(default_factory=list)
    stack: ExitStack = field(default_factory=ExitStack)


def cluster_of_a_kubeconfig(world: World) -> None:
    """A kubeconfig that works with kubectl, whose user has an exec plugin."""
    api = world.stack.enter_context(ApiServer(world.authority).running())
    api.rules.tokens = {"token-1"}
    api.first_event = {"type": "ADDED", "object": {}}
    plugin = PluginScript(world.folder.parent / "plugin").answer(token="token-1", expires_at="2999-01-01T00:00:00Z")
    authority = world.folder.parent / "authority.pem"
    world.authority.cert_pem.write_to_path(str(authority))
    kubeconfig = write_kubeconfig(
        world.folder.parent / "kubeconfig",
        server=api.url,
        user=exec_user(plugin.path),
        cluster={"certificate-authority": str(authority)},
    )
    world.environment["KUBECONFIG"] = str(kubeconfig)


def person_at_eks(world: World) -> None:
    """A kubeconfig whose user is signed in by the real ``aws``, with keys that no cloud knows."""
    if shutil.which("aws") is None:
        missing("aws")
    api = world.stack.enter_context(ApiServer(world.authority).running())
    authority = world.folder.parent / "authority.pem"
    world.authority.cert_pem.write_to_path(str(authority))
    args = ["--region", "eu-central-1", "eks", "get-token", "--cluster-name", "dev", "--output", "json"]
    kubeconfig = write_kubeconfig(
        world.folder.parent / "kubeconfig",
        server=api.url,
        user=exec_user("aws", version="v1beta1", args=args),
        cluster={"certificate-authority": str(authority)},
    )
    keys = {"AWS_ACCESS_KEY_ID": "AKIAIOSFODNN7EXAMPLE", "AWS_SECRET_ACCESS_KEY": "a-key-of-the-test"}
    world.environment |= {"KUBECONFIG": str(kubeconfig), "AWS_EC2_METADATA_DISABLED": "true", **keys}


def cluster_behind_the_gateway(world: World) -> None:
    """The API server that a gateway stands before, and an administrator's kubeconfig for it."""
    cluster = world.stack.enter_context(Cluster(world.authority))
    cluster.add_namespace("team")
    cluster.add_pod("team", "web")
    cluster.trust.impersonators.add("system:serviceaccount:ostiary:gateway")
    world.addresses["https://10.0.0.1:6443"] = cluster.url
    kubeconfig = write_kubeconfig(
        world.folder.parent / "admin.kubeconfig",
        server=cluster.url,
        user={"token": cluster.add_token("admin")},
        cluster={"certificate-authority-data": b64encode(world.authority.cert_pem.bytes()).decode()},
    )
    world.environment["KUBECONFIG"] = str(kubeconfig)


def operator_with_an_audit_log(world: World) -> None:
    """What alice and a service account did, as a gateway records it."""
    path = "/api/v1/namespaces/team/pods"
    requests = [("alice", "get", "web"), ("alice", "get", "db"), ("alice", "list", "")]
    events = [
        {
            "kind": "Event",
            "apiVersion": "audit.k8s.io/v1",
            "level": "Metadata",
            "auditID": f"id-{number}",
            "stage": "ResponseComplete",
            "verb": verb,
            "requestURI": f"{path}/{name}" if name else path,
            "user": {"username": user, "groups": ["system:authenticated"]},
            "objectRef": {"resource": "pods", "namespace": "team", "name": name, "apiVersion": "v1"},
            "responseStatus": {"code": 200},
            "requestReceivedTimestamp": "2026-01-31T08:00:00.000000Z",
            "annotations": {"authorization.k8s.io/decision": "allow"},
        }
        for number, (user, verb, name) in enumerate([*requests, ("system:serviceaccount:shop:builder", "list", "")])
    ]
    (world.folder / "audit.log").write_text("".join(f"{json.dumps(event)}\n" for event in events))


def cluster_with_a_key(world: World) -> None:
    """A context ``prod`` with a client certificate, and a folder for sockets whose path is short."""
    cluster = world.stack.enter_context(Cluster(world.authority))
    cluster.add_pod("default", "web")
    folder = world.folder.parent / "key"
    folder.mkdir()
    kubeconfig = cluster.kubeconfig(folder / "config", certificate_user(cluster, folder))
    kubeconfig.write_text(kubeconfig.read_text().replace('"test"', '"prod"'))
    world.environment["KUBECONFIG"] = str(kubeconfig)
    runtime = tempfile.mkdtemp(prefix="ostiary-")
    world.stack.callback(shutil.rmtree, runtime)
    world.environment["XDG_RUNTIME_DIR"] = runtime


def credential_for_a_cluster(world: World) -> None:
    """The gateway's own credential, as another page makes it."""
    token = world.folder / "cluster-token"
    token.touch(mode=0o600)
    token.write_text("token-of-the-gateway")
    world.authority.cert_pem.write_to_path(str(world.folder / "cluster-ca.pem"))


def cluster_of_the_gateway(world: World) -> Cluster:
    """The API server that a gateway stands before already, with the gateway's credential for it."""
    cluster = world.stack.enter_context(Cluster(world.authority))
    cluster.add_namespace("team")
    world.addresses["https://10.0.0.1:6443"] = cluster.url
    credential_for_a_cluster(world)
    (world.folder / "cluster-token").write_text(cluster.add_token("gateway", may_impersonate=True))
    return cluster


def cluster_with_a_pod(world: World) -> None:
    cluster_of_the_gateway(world).add_pod("team", "web")


def server_of_spire(world: World) -> None:
    """The trust bundle, as SPIRE's server shows it."""
    credential_for_a_cluster(world)
    (world.folder / "bundle.json").write_text(json.dumps({"keys": [public(ec_key("svid"), use="jwt-svid")]}))


def administrator_of_a_realm(world: World) -> None:
    """A keytab, as the KDC's administrator hands it out."""
    if lacking := [program for program in KDC_PROGRAMS if shutil.which(program) is None]:
        missing(*lacking)
    credential_for_a_cluster(world)
    folder = world.folder.parent / "kdc"
    folder.mkdir()
    with running_kdc(folder) as kdc:
        kdc.add_service("HTTP/gateway.example.com")
        keytab = kdc.keytab("HTTP/gateway.example.com")
    keytab.chmod(0o600)
    keytab.rename(world.folder / "gateway.keytab")


def administrator_of_google(world: World) -> None:
    """The key of a service account, as Google's console gives it out."""
    credential_for_a_cluster(world)
    Google(world.authority).write_key(world.folder / "service-account.json").chmod(0o600)


def collector_of_traces(world: World) -> None:
    """A collector, whose authority only its operator knows."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    world.authority.issue_cert("localhost").configure_cert(context)
    collector = world.stack.enter_context(collecting(context))
    world.addresses["https://collector.example.com:4318/v1/traces"] = collector.url
    world.authority.cert_pem.write_to_path(str(world.folder / "collector-ca.pem"))


def author_of_a_package(world: World) -> None:
    """Python finds what is in the folder, as it does after ``pip install -e .``, and pytest is there."""
    world.environment["PYTHONPATH"] = str(world.folder)
    programs = world.folder / "bin"
    programs.mkdir()
    (programs / "pytest").write_text('#!/bin/sh\nexec python3 -m pytest "$@"\n')
    (programs / "pytest").chmod(0o755)


def machine_with_a_service(world: World) -> None:
    """``systemctl`` for a gateway that is a service, the one of the gateway.yaml in the folder; and a database."""
    if shutil.which("sqlite3") is None:
        missing("sqlite3")
    server = world.stack.enter_context(running(config="fsync = on\n"))
    world.addresses["db.example.com:5432"] = f"{server.host}:{server.port}"
    world.environment["PGPASSWORD"] = PASSWORD
    password = world.folder / "database-password"
    password.touch(mode=0o600)
    password.write_text(PASSWORD)
    programs = world.folder / "bin"
    programs.mkdir()
    shutil.copy(ROOT / "tests/support/service_control.py", programs / "systemctl")
    (programs / "systemctl").chmod(0o755)
    stop = [str(programs / "systemctl"), "stop", "ostiary"]
    world.stack.callback(lambda: subprocess.run(stop, cwd=world.folder, check=True))


def builder_of_the_image(world: World) -> None:
    """The image is built, and podman runs it; on the loopback alone."""
    image.build()
    programs = world.folder / "bin"
    programs.mkdir()
    image.write_podman(programs / "podman")
    world.stack.callback(image.remove, container="gateway", volume="ostiary-state")
    world.addresses["0.0.0.0"] = "127.0.0.1"
    world.addresses["ostiary:0.1.0"] = image.NAME


def administrator_of_a_host(world: World) -> None:
    """A machine with systemd, the program in /opt/ostiary, and this project's folder `deploy`."""
    image.build()
    systemd = world.stack.enter_context(PrivateSystemd(world.folder.parent / "systemd"))
    world.inside = systemd.shell(world.folder)
    (world.folder / "deploy").symlink_to(ROOT / "deploy")


def machine_with_a_database_and_haproxy(world: World) -> None:
    """PostgreSQL with the role and the database of the page; HAProxy ends with the page."""
    if shutil.which("haproxy") is None:
        missing("haproxy")
    server = world.stack.enter_context(running())
    server.sql("ALTER ROLE ostiary PASSWORD 'change-me'")
    world.addresses["127.0.0.1:5432"] = f"{server.host}:{server.port}"
    world.stack.callback(_end_process, world.folder / "haproxy.pid")


def _end_process(pid_file: Path) -> None:
    if pid_file.exists():
        os.kill(int(pid_file.read_text()), signal.SIGKILL)


def daemon_of_ones_own(world: World) -> None:
    """Not root's: the tests may run as root, as others do."""
    world.environment["OSTIARY_REGISTRY_SOCKET"] = str(world.folder / "run/registry.sock")


def switches_of_ones_own(world: World) -> None:
    """Not the machine's."""
    world.environment["OSTIARY_REGISTRY_SWITCHES"] = str(world.folder / "switched-off")


WORLDS: dict[str, Callable[[World], object]] = {
    "docs/how-to/use-kubectl-with-a-hardware-key.md": cluster_with_a_key,
    "docs/how-to/keep-registry-credentials-in-memory.md": daemon_of_ones_own,
    "docs/how-to/roll-back-credential-providers.md": switches_of_ones_own,
    "README.md: Door 1": cluster_of_a_kubeconfig,
    "docs/tutorial/first-steps.md": cluster_of_a_kubeconfig,
    "docs/how-to/accept-kubeconfigs-from-others.md": cluster_of_a_kubeconfig,
    "docs/how-to/bring-your-own-credentials.md": cluster_of_a_kubeconfig,
    "docs/how-to/debug-sign-in.md": cluster_of_a_kubeconfig,
    "docs/how-to/metrics.md": cluster_of_a_kubeconfig,
    "docs/how-to/sign-requests.md": cluster_of_a_kubeconfig,
    "docs/how-to/use-your-http-client.md": cluster_of_a_kubeconfig,
    "docs/how-to/use-aws-eks.md": person_at_eks,
    "docs/how-to/use-gke.md": cluster_of_a_kubeconfig,
    "docs/how-to/use-kubelogin.md": cluster_of_a_kubeconfig,
    "docs/how-to/move-and-back-up-the-store.md": machine_with_a_service,
    "docs/how-to/google-groups.md": administrator_of_google,
    "docs/how-to/add-an-identity-provider.md": credential_for_a_cluster,
    "docs/how-to/sign-in-from-any-issuer.md": credential_for_a_cluster,
    "docs/how-to/sign-in-from-github-actions.md": credential_for_a_cluster,
    "docs/how-to/sign-in-from-gitlab-ci.md": credential_for_a_cluster,
    "docs/how-to/sign-in-from-pods.md": credential_for_a_cluster,
    "docs/how-to/sign-in-with-auth0.md": credential_for_a_cluster,
    "docs/how-to/sign-in-with-github.md": credential_for_a_cluster,
    "docs/how-to/sign-in-with-gitlab.md": credential_for_a_cluster,
    "docs/how-to/sign-in-with-google.md": credential_for_a_cluster,
    "docs/how-to/sign-in-with-kerberos.md": administrator_of_a_realm,
    "docs/how-to/sign-in-with-keycloak.md": credential_for_a_cluster,
    "docs/how-to/sign-in-with-microsoft.md": credential_for_a_cluster,
    "docs/how-to/sign-in-with-okta.md": credential_for_a_cluster,
    "docs/how-to/sign-in-with-ldap.md": credential_for_a_cluster,
    "docs/how-to/sign-in-with-oidc.md": credential_for_a_cluster,
    "docs/how-to/sign-in-with-saml.md": credential_for_a_cluster,
    "docs/how-to/sign-in-with-spiffe.md": server_of_spire,
    "docs/how-to/trace-requests.md": collector_of_traces,
    "docs/how-to/compare-with-the-cluster.md": cluster_behind_the_gateway,
    "docs/how-to/roles-from-use.md": operator_with_an_audit_log,
    "docs/how-to/run-replicas-behind-haproxy.md": machine_with_a_database_and_haproxy,
    "docs/how-to/run-in-a-container.md": builder_of_the_image,
    "docs/how-to/run-with-systemd.md": administrator_of_a_host,
    "docs/how-to/write-a-provider.md": author_of_a_package,
    "docs/how-to/put-a-gateway-before-kubernetes.md": cluster_behind_the_gateway,
    "docs/how-to/use-the-policy-of-a-cluster.md": cluster_behind_the_gateway,
    "docs/how-to/restrict-privileged-pods.md": cluster_of_the_gateway,
    "docs/how-to/add-an-api-plugin.md": cluster_with_a_pod,
}


@pytest.fixture(scope="session")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("installed")
    return install_with_extras(folder / "venv", build(folder), build(folder, project=GATEWAY))


@pytest.fixture
def world(tmp_path: Path, ca: trustme.CA) -> Iterator[World]:
    folder = tmp_path / "reader"
    folder.mkdir()
    world = World(folder, ca)
    with world.stack:
        yield world


def kubectl_for(page: str, folder: Path) -> list[Path]:
    """A folder with the kubectl of the tests, if the page uses one."""
    commands = " ".join(step.line for step in steps(page) if isinstance(step, Command))
    if "kubectl" not in commands:
        return []
    kubectl = find_kubectl()
    if kubectl is None:
        missing("kubectl")
    folder.mkdir()
    (folder / "kubectl").symlink_to(kubectl)
    return [folder]


def test_every_page_has_something_to_follow() -> None:
    without = {str(page.relative_to(ROOT)) for page in PAGES if not any(steps(page.read_text()))}
    assert without == NEEDS_A_CLUSTER | NOTHING_TO_TYPE_HERE | READ_BY_TESTS.keys()
    for page, test in READ_BY_TESTS.items():
        assert Path(page).name in Path(__file__).with_name(test).read_text()


# Two pages need the image: seconds if it has been built before.
@pytest.mark.timeout(image.BUILD_SECONDS)
@pytest.mark.parametrize(("name", "page"), list(followed()))
def test_a_reader_can_follow_the_page(name: str, page: str, world: World, programs: Path, tmp_path: Path) -> None:
    """I2."""
    if name in WORLDS:
        WORLDS[name](world)
    for address, actual in world.addresses.items():
        page = page.replace(address, actual)
    others = [
        world.folder / "bin",
        offline_pip.write(tmp_path / "pip"),
        *kubectl_for(page, tmp_path / "kubectl"),
        programs,
    ]
    home = {"HOME": str(world.folder)}
    with Walk(world.folder, *others, inside=world.inside, **home, **world.environment) as reader:
        reader.follow(on_free_ports(page))


def test_the_demo_stays_signed_in() -> None:
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "examples.stay_signed_in",
            "--requests",
            "6",
            "--interval",
            "0",
            "--token-seconds",
            "60",
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    assert "6 requests" in done.stdout
    assert "none lost" in done.stdout


def test_the_gateway_demo_shows_what_it_says() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "examples.gateway"],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"her stream is cut after \d+ ms", done.stdout)


@pytest.mark.needs("haproxy")
def test_the_demo_of_replicas_shows_what_it_says() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "examples.replicas"],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=110,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"replica 3 refuses her token \d+ ms later", done.stdout)
