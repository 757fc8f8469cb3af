"""README, tutorials and how-to pages, followed from top to bottom in an empty folder, with the package from its wheel.

What a page takes for granted, because it is about a cluster, an identity system or a registry that the reader has, is
set up by its entry in `WORLDS`. Everything else must be on the page itself.
"""

from __future__ import annotations

import re
import subprocess
import sys
from base64 import b64encode
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import trustme

from tests.support import offline_pip
from tests.support.apiserver import ApiServer
from tests.support.cluster import Cluster
from tests.support.google import Google
from tests.support.kubectl import find_kubectl
from tests.support.missing import missing
from tests.support.plugins import PluginScript, exec_user, write_kubeconfig
from tests.support.walkthrough import ROOT, Command, Walk, on_free_ports, sections, steps
from tests.support.wheel import build, install_with_extras

PAGES = [
    ROOT / "README.md",
    *sorted((ROOT / "docs/tutorial").glob("*.md")),
    *sorted((ROOT / "docs/how-to").glob("*.md")),
]
FOLLOWED = [pytest.param(name, text, id=name) for page in PAGES for name, text in sections(page) if any(steps(text))]


@dataclass
class World:
    """What surrounds a reader: addresses that stand for others, variables, and what has to be ended."""

    folder: Path
    authority: trustme.CA
    addresses: dict[str, str] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)
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


def credential_for_a_cluster(world: World) -> None:
    """The gateway's own credential, as another page makes it."""
    token = world.folder / "cluster-token"
    token.touch(mode=0o600)
    token.write_text("a token of the gateway")


def administrator_of_google(world: World) -> None:
    """The key of a service account, as Google's console gives it out."""
    credential_for_a_cluster(world)
    Google(world.authority).write_key(world.folder / "service-account.json").chmod(0o600)


def author_of_a_package(world: World) -> None:
    """Python finds what is in the folder, as it does after ``pip install -e .``, and pytest is there."""
    world.environment["PYTHONPATH"] = str(world.folder)
    programs = world.folder / "bin"
    programs.mkdir()
    (programs / "pytest").write_text('#!/bin/sh\nexec python3 -m pytest "$@"\n')
    (programs / "pytest").chmod(0o755)


WORLDS: dict[str, Callable[[World], None]] = {
    "README.md: Door 1": cluster_of_a_kubeconfig,
    "docs/tutorial/first-steps.md": cluster_of_a_kubeconfig,
    "docs/how-to/accept-kubeconfigs-from-others.md": cluster_of_a_kubeconfig,
    "docs/how-to/debug-sign-in.md": cluster_of_a_kubeconfig,
    "docs/how-to/metrics.md": cluster_of_a_kubeconfig,
    "docs/how-to/use-your-http-client.md": cluster_of_a_kubeconfig,
    "docs/how-to/google-groups.md": administrator_of_google,
    "docs/how-to/sign-in-with-github.md": credential_for_a_cluster,
    "docs/how-to/sign-in-with-ldap.md": credential_for_a_cluster,
    "docs/how-to/sign-in-with-oidc.md": credential_for_a_cluster,
    "docs/how-to/write-a-provider.md": author_of_a_package,
    "docs/how-to/put-a-gateway-before-kubernetes.md": cluster_behind_the_gateway,
}


@pytest.fixture(scope="session")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("installed")
    return install_with_extras(build(folder), folder / "venv")


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
    without = [str(page.relative_to(ROOT)) for page in PAGES if not any(steps(page.read_text()))]
    assert without == []


@pytest.mark.needs("curl", "htpasswd", "openssl")
@pytest.mark.parametrize(("name", "page"), FOLLOWED)
def test_a_reader_can_follow_the_page(name: str, page: str, world: World, programs: Path, tmp_path: Path) -> None:
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
    with Walk(world.folder, *others, HOME=str(world.folder), **world.environment) as reader:
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
