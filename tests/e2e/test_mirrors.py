"""Mirrors with the real programs: what we say of a pull is what skopeo, podman, buildah and containerd do.

Two registries, each with a login of its own: one is the registry of the image's name, the other its mirror.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from base64 import b64encode
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from ostiary.registry.keyring import Keyring
from ostiary.registry.kubelet.config import load
from ostiary.registry.mirrors.containerd import ContainerdHosts
from ostiary.registry.mirrors.endpoints import PullLookup, lookup_endpoints
from ostiary.registry.mirrors.registries_conf import RegistriesConf
from ostiary.wire.credential_provider import Request, encode_request
from tests.support.containerd import Containerd, running_containerd
from tests.support.providers import ProviderScript
from tests.support.registry import Passwords, Registry, write_image

pytestmark = [
    pytest.mark.needs("root"),
    pytest.mark.needs("docker-registry", "skopeo", "podman", "buildah", "containerd", "ctr", "htpasswd"),
]

IMAGE = "registry.example.com/team/app:v1"
LOGINS = {"origin": ("alice", "origin-pw"), "mirror": ("bob", "mirror-pw")}
Done = subprocess.CompletedProcess[str]


@dataclass(frozen=True)
class Place:
    """The registry, its mirror, and a provider that knows the login of each."""

    origin: str
    mirror: str
    keyring: Keyring
    options: tuple[str, ...]
    folder: Path


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    folder = tmp_path_factory.mktemp("mirrors")
    layout = write_image(folder / "oci")
    provider = ProviderScript(folder / "bin")
    addresses: dict[str, str] = {}
    with ExitStack() as stack:
        for name, (username, password) in LOGINS.items():
            passwords = Passwords(folder / f"{name}.htpasswd")
            passwords.set(username, password)
            registry = stack.enter_context(Registry(folder / name, passwords.auth).running())
            addresses[name] = registry.address
            provider.answer({registry.address: (username, password)}, registry=registry.address)
            for path in ("team/app", "cache/team/app")[: 1 if name == "origin" else 2]:
                target = f"docker://{registry.address}/{path}:v1"
                login = ("--dest-creds", f"{username}:{password}")
                run(
                    "skopeo", "--insecure-policy", "copy", "--dest-tls-verify=false", *login, f"oci:{layout}:v1", target
                )
        config = folder / "providers.yaml"
        config.write_text(
            json.dumps(
                {
                    "apiVersion": "kubelet.config.k8s.io/v1",
                    "kind": "CredentialProviderConfig",
                    "providers": [
                        {
                            "name": provider.name,
                            "apiVersion": "credentialprovider.kubelet.k8s.io/v1",
                            "matchImages": list(addresses.values()),
                            "defaultCacheDuration": "1h",
                        }
                    ],
                }
            )
        )
        keyring = Keyring(load(config), bin_dir=provider.bin_dir)
        options = ("--config", str(config), "--bin-dir", str(provider.bin_dir))
        yield Place(addresses["origin"], addresses["mirror"], keyring, options, folder)


def run(*command: str, check: bool = True, stdin: str = "") -> Done:
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "HOME": "/nonexistent"}
    done = subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=100, env=environment)
    assert not check or done.returncode == 0, done.stderr
    return done


def registries_conf(place: Place, folder: Path, *, mirror: str, settings: str = "") -> Path:
    file = folder / "registries.conf"
    file.write_text(
        f"""\
[[registry]]
prefix = "registry.example.com"
location = "{place.origin}"
insecure = true
{settings}
[[registry.mirror]]
location = "{mirror}"
insecure = true
"""
    )
    return file


def auth_file(found: PullLookup, file: Path) -> Path:
    """A login for each endpoint, under its whole name there."""
    auths = {
        each.endpoint.repository: {
            "auth": b64encode(f"{credential.username}:{credential.password.reveal()}".encode()).decode()
        }
        for each in found.endpoints
        for credential in each.lookup
    }
    file.write_text(json.dumps({"auths": auths}))
    return file


def skopeo(file: Path, auths: Path, image: str = IMAGE) -> tuple[bool, list[str]]:
    """Whether an inspection succeeds, and what was tried in which order."""
    options = ("--registries-conf", str(file), "--debug", "inspect", "--raw", "--authfile", str(auths))
    done = run("skopeo", *options, f"docker://{image}", check=False)
    marker = 'msg="Trying to access \\"'
    lines = [line.partition(marker)[2] for line in done.stderr.splitlines() if marker in line]
    return done.returncode == 0, [line.removesuffix('\\""') for line in lines]


# --- registries.conf ---


@pytest.mark.parametrize(
    ("mirror_path", "settings"),
    [("/cache", ""), ("", ""), ("/missing", ""), ("", "mirror-by-digest-only = true")],
)
def test_skopeo_asks_the_same_places_in_the_same_order_with_our_credentials(
    place: Place, tmp_path: Path, mirror_path: str, settings: str
) -> None:
    file = registries_conf(place, tmp_path, mirror=place.mirror + mirror_path, settings=settings)
    found = lookup_endpoints(place.keyring, RegistriesConf(file), IMAGE)
    succeeded, tried = skopeo(file, auth_file(found, tmp_path / "auth.json"))
    assert succeeded
    expected = [endpoint.address for endpoint in found.plan.asked]
    # It stops at the first that has the image.
    assert tried == (expected if mirror_path == "/missing" else expected[:1])
    assert all(each.lookup.found for each in found.endpoints)


def test_a_login_for_the_images_own_name_is_of_no_use_at_a_mirror(place: Place, tmp_path: Path) -> None:
    file = registries_conf(place, tmp_path, mirror=place.mirror)
    auths = tmp_path / "auth.json"
    login = b64encode(b"bob:mirror-pw").decode()
    auths.write_text(json.dumps({"auths": {"registry.example.com": {"auth": login}}}))
    assert skopeo(file, auths)[0] is False


def test_a_blocked_registry_is_left_out_and_its_mirror_is_not(place: Place, tmp_path: Path) -> None:
    file = registries_conf(place, tmp_path, mirror=f"{place.mirror}/missing")
    with file.open("a") as text:
        text.write(f'[[registry]]\nlocation = "{place.origin}"\nblocked = true\ninsecure = true\n')
    # Two tables with one location must agree.
    file.write_text(file.read_text().replace("insecure = true\n", "insecure = true\nblocked = true\n", 1))
    found = lookup_endpoints(place.keyring, RegistriesConf(file), IMAGE)
    assert [endpoint.host for endpoint in found.plan.asked] == [place.mirror]
    assert skopeo(file, auth_file(found, tmp_path / "auth.json"))[0] is False
    file.write_text(file.read_text().replace("/missing", ""))
    assert skopeo(file, auth_file(lookup_endpoints(place.keyring, RegistriesConf(file), IMAGE), tmp_path / "a"))[0]


@pytest.mark.parametrize(
    ("prefix", "image"),
    [
        ("*.example.com", "a.b.example.com/team/app:v1"),
        ("*.example.com", "example.com/team/app:v1"),
        ("example.com", "example.com.invalid/team/app:v1"),
        ("example.com/team", "example.com/team/app:v1"),
        ("example.com/te", "example.com/team/app:v1"),
        ("example.com/team/app:v1", "example.com/team/app:v1"),
        ("*.example.com", "a.example.com.b.example.com/team/app:v1"),
    ],
)
def test_prefixes_match_as_skopeo_matches_them(place: Place, tmp_path: Path, prefix: str, image: str) -> None:
    file = tmp_path / "registries.conf"
    location = f"{place.mirror}/team" if prefix == "example.com/team" else place.mirror
    file.write_text(f'[[registry]]\nprefix = "{prefix}"\nlocation = "{location}"\ninsecure = true\n')
    found = lookup_endpoints(place.keyring, RegistriesConf(file), image)
    _, tried = skopeo(file, auth_file(found, tmp_path / "auth.json"), image)
    assert tried == [endpoint.address for endpoint in found.plan.asked]


@pytest.mark.parametrize("program", ["podman", "buildah"])
def test_podman_and_buildah_pull_by_an_alias_from_the_mirror(place: Place, tmp_path: Path, program: str) -> None:
    file = registries_conf(place, tmp_path, mirror=f"{place.mirror}/cache")
    file.write_text('[aliases]\n"our/app" = "registry.example.com/team/app"\n' + file.read_text())
    found = lookup_endpoints(place.keyring, RegistriesConf(file), "our/app:v1")
    assert found.plan.names == (IMAGE,)
    # With the login of the mirror alone, for its part alone.
    auths = auth_file(replace(found, endpoints=found.endpoints[:1]), tmp_path / "auth.json")
    # podman refuses a runroot of more than 50 characters.
    with tempfile.TemporaryDirectory(prefix="run") as runroot:
        storage = ("--storage-driver", "vfs", "--root", str(tmp_path / "root"), "--runroot", runroot)
        # The option is hidden, and both have it.
        done = run(program, *storage, "--registries-conf", str(file), "pull", "--authfile", str(auths), "our/app:v1")
    assert 'Resolved "our/app" as an alias' in done.stderr


# --- containerd ---


@pytest.fixture(scope="module")
def containerd(place: Place) -> Iterator[Containerd]:
    hosts_dir = place.folder / "certs.d"
    write_hosts(place, hosts_dir, "registry.example.com", f'[host."http://{place.mirror}"]\n')
    write_hosts(place, hosts_dir, "_default", f'[host."http://{place.mirror}/v2/cache"]\noverride_path = true\n')
    write_hosts(place, hosts_dir, "port.example.com:5000", f'[host."http://{place.mirror}"]\n')
    write_hosts(place, hosts_dir, "bad.example.com", f'[host."http://{place.mirror}"]\ncapabilities = ["pul"]\n')
    with (
        tempfile.TemporaryDirectory(prefix="c") as folder,
        running_containerd(Path(folder) / "d", hosts_dir) as process,
    ):
        yield process


def write_hosts(place: Place, hosts_dir: Path, directory: str, text: str) -> None:
    (hosts_dir / directory).mkdir(parents=True)
    (hosts_dir / directory / "hosts.toml").write_text(f'server = "http://{place.origin}"\n{text}')


@pytest.mark.parametrize(
    "image",
    [IMAGE, "port.example.com:5000/team/app:v1", "any.example.com/team/app:v1", "any.example.com:80/team/app:v1"],
)
def test_containerd_takes_our_credential_for_the_first_host(place: Place, containerd: Containerd, image: str) -> None:
    found = lookup_endpoints(place.keyring, ContainerdHosts(containerd.hosts_dir), image)
    assert [each.endpoint.host for each in found.endpoints] == [place.mirror, place.origin]
    (credential,) = found.endpoints[0].lookup
    done = containerd.fetch(image, f"{credential.username}:{credential.password.reveal()}")
    assert done.returncode == 0, done.stderr
    # A login that the mirror refuses is sent to the server next.
    (of_server,) = found.endpoints[1].lookup
    assert containerd.fetch(image, f"{of_server.username}:{of_server.password.reveal()}").returncode == 0
    assert containerd.fetch(image, f"{of_server.username}:wrong").returncode != 0


def test_containerd_passes_over_a_file_with_a_mistake(containerd: Containerd) -> None:
    done = containerd.fetch("bad.example.com/team/app:v1", "bob:mirror-pw")
    assert "https://bad.example.com/v2/team/app" in done.stderr


def test_what_the_kubelet_hands_over_goes_to_the_mirror_as_well(containerd: Containerd) -> None:
    """The kubelet's request has the credential for the image's own name, and no server's address beside it."""
    assert containerd.pull(IMAGE, "bob", "mirror-pw") == ""
    assert "401" in containerd.pull(IMAGE, "bob", "wrong")
    # With an address, which the kubelet does not send, the mirror would not get it.
    assert "401" in containerd.pull(IMAGE, "bob", "mirror-pw", server="https://registry.example.com")


def test_our_provider_answers_the_kubelet_with_the_login_of_the_mirror(
    place: Place, containerd: Containerd, tmp_path: Path
) -> None:
    auths = {place.mirror: {"username": "bob", "password": "mirror-pw"}}
    (tmp_path / "auth.json").write_text(json.dumps({"auths": auths}))
    source = {
        "matchImages": ["registry.example.com"],
        "authFile": "auth.json",
        "hostsDir": str(containerd.hosts_dir),
    }
    sources = {"apiVersion": "ostiary/v1", "kind": "ImageCredentialSources", "sources": [source]}
    (tmp_path / "sources.yaml").write_text(json.dumps(sources))
    request = encode_request(Request("registry.example.com/team/app")).decode()
    done = run("ostiary-credential-provider", "--config", str(tmp_path / "sources.yaml"), stdin=request)
    (login,) = json.loads(done.stdout)["auth"].values()
    assert containerd.pull(IMAGE, login["username"], login["password"]) == ""


# --- the command line ---


def test_get_explain_and_lint_tell_of_the_same_mirror(place: Place, containerd: Containerd) -> None:
    options = (*place.options, "--hosts-dir", str(containerd.hosts_dir))
    told = json.loads(run("ostiary", "registry", "get", *options, "-o", "json", IMAGE).stdout)
    assert [each["credentials"][0]["username"] for each in told["endpoints"]] == ["bob", "alice"]
    text = run("ostiary", "registry", "explain", *options, IMAGE).stdout
    assert text.index(f"1. http://{place.mirror}/v2/team/app") < text.index(f"2. http://{place.origin}/v2/team/app")
    assert "mirror-pw" not in text
    linted = run("ostiary", "registry", "lint", *options, "-o", "json", check=False)
    assert {finding["rule"] for finding in json.loads(linted.stdout)["findings"]} >= {"hosts-file-invalid"}
