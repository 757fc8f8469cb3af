"""A source with a hosts dir answers with the login of the host that containerd asks first."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ostiary.errors import ConfigurationError
from ostiary.registry.kubelet.respond import respond
from ostiary.registry.kubelet.sources import load
from ostiary.wire.credential_provider import Request, Response

CANARY = "c4n4ry-c4n4ry"
IMAGE = "a.registry.io/team/app"


def answer(folder: Path, hosts: str, auths: dict[str, str], *sources: dict[str, Any]) -> Response:
    """What is answered for `IMAGE` with this ``hosts.toml`` and the logins *auths*, by key and username."""
    directory = folder / "certs.d" / "a.registry.io"
    directory.mkdir(parents=True)
    (directory / "hosts.toml").write_text(hosts)
    logins = {key: {"username": username, "password": CANARY} for key, username in auths.items()}
    (folder / "auth.json").write_text(json.dumps({"auths": logins}))
    listed = [{"matchImages": ["*.registry.io"], "authFile": "auth.json", **source} for source in sources]
    path = folder / "sources.yaml"
    path.write_text(json.dumps({"apiVersion": "ostiary/v1", "kind": "ImageCredentialSources", "sources": listed}))
    return respond(Request(IMAGE), load(path))


WITH_MIRRORS = {"hostsDir": "certs.d"}


def test_the_login_is_that_of_the_host_that_containerd_asks_first(tmp_path: Path) -> None:
    hosts = '[host."https://mirror.example.net/v2/hub"]\noverride_path = true\n'
    response = answer(tmp_path, hosts, {"mirror.example.net/hub": "mirror-robot", IMAGE: "robot"}, WITH_MIRRORS)
    # Under the image's own name, or the kubelet would have no use for it.
    assert {key: auth.username for key, auth in response.auth.items()} == {IMAGE: "mirror-robot"}


def test_a_mirror_that_is_not_asked_for_tags_is_not_the_first(tmp_path: Path) -> None:
    hosts = '[host."https://content.example.net"]\ncapabilities = ["pull"]\n[host."https://mirror.example.net"]\n'
    logins = {"content.example.net": "content-robot", "mirror.example.net": "mirror-robot"}
    assert answer(tmp_path, hosts, logins, WITH_MIRRORS).auth[IMAGE].username == "mirror-robot"


def test_a_mirror_without_a_login_leaves_the_word_to_the_next_source(tmp_path: Path) -> None:
    hosts = '[host."https://mirror.example.net"]\n'
    response = answer(tmp_path, hosts, {"a.registry.io": "robot"}, WITH_MIRRORS, {})
    assert response.auth[IMAGE].username == "robot"


def test_without_a_hosts_dir_mirrors_play_no_part(tmp_path: Path) -> None:
    response = answer(tmp_path, "x = ", {"a.registry.io": "robot"}, {})
    assert response.auth[IMAGE].username == "robot"


@pytest.mark.parametrize(
    ("hosts", "cause"),
    [
        ('[host."http://mirror"]\n', "mirror: no image name can have this host"),
        ('server = "https://a.registry.io"\ncapabilities = ["push"]\n', "no host is asked for it"),
        ("x = \n", "it is not TOML"),
    ],
)
def test_a_mirror_that_cannot_be_worked_out_is_a_failure_and_no_empty_answer(
    tmp_path: Path, hosts: str, cause: str
) -> None:
    with pytest.raises(ConfigurationError) as refused:
        answer(tmp_path, hosts, {"a.registry.io": "robot"}, WITH_MIRRORS)
    assert refused.value.code == "mirrors-invalid"
    assert str(refused.value.cause).startswith(cause)
