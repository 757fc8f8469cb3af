"""The pages about the gateway, followed by a reader who types what stands there and sees what they promise."""

from __future__ import annotations

import shutil
import tomllib
from collections.abc import Iterator
from pathlib import Path

import bcrypt
import pytest
import trustme

from tests.support.cluster import Cluster
from tests.support.kubectl import find_kubectl
from tests.support.missing import missing
from tests.support.walkthrough import ROOT, Command, Walk, WriteFile, is_followed, on_free_ports, sections, steps

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
FOLLOWED = [
    pytest.param(section, id=str(page.relative_to(ROOT)))
    for page in PAGES
    for section in sections(page)
    if is_followed(section)
]


@pytest.fixture
def cluster(ca: trustme.CA) -> Iterator[Cluster]:
    with Cluster(ca) as cluster:
        cluster.add_namespace("team")
        cluster.add_pod("team", "web")
        yield cluster


@pytest.fixture
def folder(tmp_path: Path, ca: trustme.CA, cluster: Cluster) -> Path:
    """What the pages take for granted: users, a certificate, the credentials of the cluster."""
    folder = tmp_path / "reader"
    (folder / "policy").mkdir(parents=True)
    people = {"alice": b"open-sesame", "operator": b"swordfish"}
    rows = [f"{name}:{bcrypt.hashpw(word, bcrypt.gensalt(4)).decode()}\n" for name, word in people.items()]
    (folder / "users").write_text("".join(rows))
    leaf = ca.issue_cert("localhost")
    chain = b"".join(pem.bytes() for pem in leaf.cert_chain_pems)
    (folder / "tls.pem").write_bytes(chain + ca.cert_pem.bytes())
    leaf.private_key_pem.write_to_path(str(folder / "tls-key.pem"))
    ca.cert_pem.write_to_path(str(folder / "cluster-ca.pem"))
    (folder / "cluster-token").write_text(cluster.add_token("gateway", may_impersonate=True))
    (folder / "caller-token").write_text("the-api-server")
    return folder


def installed(page: str, folder: Path) -> None:
    """The page's own package, as ``pip install`` would leave it: no network is needed to read what it declares."""
    for step in steps(page):
        if isinstance(step, WriteFile) and step.name == "pyproject.toml":
            project = tomllib.loads(step.text)["project"]
            info = folder / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
            info.mkdir()
            head = f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n"
            (info / "METADATA").write_text(head)
            rows = [
                f"[{group}]\n" + "".join(f"{name} = {target}\n" for name, target in points.items())
                for group, points in project["entry-points"].items()
            ]
            (info / "entry_points.txt").write_text("".join(rows))


@pytest.mark.parametrize("page", FOLLOWED)
def test_a_reader_can_follow_the_page(page: str, folder: Path, cluster: Cluster) -> None:
    typed = "\n".join(step.line for step in steps(page) if isinstance(step, Command))
    programs = {name: shutil.which(name) for name in ("curl", "htpasswd", "openssl")} | {"kubectl": find_kubectl()}
    for name, found in programs.items():
        if name in typed and found is None:
            missing(name)
    if kubectl := programs["kubectl"]:
        (folder / "bin").mkdir()
        (folder / "bin" / "kubectl").symlink_to(kubectl)
    installed(page, folder)
    page = on_free_ports(page).replace("https://10.0.0.1:6443", cluster.url)
    with Walk(folder, PYTHONPATH=str(folder), HOME=str(folder)) as reader:
        reader.follow(page)
