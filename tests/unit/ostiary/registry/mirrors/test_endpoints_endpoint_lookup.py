"""Each endpoint gets the credentials of the image's name there, and nobody gets those of another host."""

from __future__ import annotations

from pathlib import Path

import pytest

from ostiary.registry.explain import explain
from ostiary.registry.keyring import Keyring
from ostiary.registry.mirrors.containerd import ContainerdHosts
from ostiary.registry.mirrors.endpoints import PullLookup, explain_endpoints, lookup_endpoints, lookup_endpoints_async
from ostiary.registry.mirrors.registries_conf import RegistriesConf
from tests.support.providers import ProviderScript, providers_config

CANARY = "c4n4ry-c4n4ry"
IMAGE = "registry.example.com/team/app:v1"


@pytest.fixture
def script(tmp_path: Path) -> ProviderScript:
    script = ProviderScript(tmp_path / "bin")
    script.answer({"mirror.example.net": ("mirror-robot", CANARY)}, registry="mirror.example.net")
    script.answer({"docker.io": ("hub-robot", CANARY)}, registry="docker.io")
    return script.answer({"registry.example.com": ("robot", CANARY)})


@pytest.fixture
def keyring(script: ProviderScript) -> Keyring:
    patterns = ("registry.example.com", "mirror.example.net", "docker.io")
    return Keyring(providers_config(script.config(*patterns)), bin_dir=script.bin_dir)


@pytest.fixture
def hosts(tmp_path: Path) -> ContainerdHosts:
    folder = tmp_path / "certs.d" / "registry.example.com"
    folder.mkdir(parents=True)
    text = '[host."https://mirror.example.net"]\n[host."http://cache"]\n[host."https://push.example.net"]\n'
    (folder / "hosts.toml").write_text(text + 'capabilities = ["push"]\n')
    return ContainerdHosts(tmp_path / "certs.d")


def users(found: PullLookup) -> list[tuple[str, list[str]]]:
    return [(each.endpoint.host, [credential.username for credential in each.lookup]) for each in found.endpoints]


EXPECTED = [("mirror.example.net", ["mirror-robot"]), ("cache", []), ("registry.example.com", ["robot"])]


def test_each_host_has_its_own_credentials_and_one_without_a_name_none(
    keyring: Keyring, hosts: ContainerdHosts
) -> None:
    found = lookup_endpoints(keyring, hosts, IMAGE)
    # "cache/team/app" is the name of an image of Docker Hub: its credential stays where it belongs.
    assert users(found) == EXPECTED
    assert found.has_credential
    assert "no image name can have this host" in found.endpoints[1].lookup.skipped[0].reason


async def test_the_same_in_an_event_loop(keyring: Keyring, hosts: ContainerdHosts) -> None:
    assert users(await lookup_endpoints_async(keyring, hosts, IMAGE)) == EXPECTED


def test_a_provider_that_fails_for_the_mirror_takes_nothing_from_the_registry(
    script: ProviderScript, keyring: Keyring, hosts: ContainerdHosts
) -> None:
    script.print_exactly(b"no json", registry="mirror.example.net")
    found = lookup_endpoints(keyring, hosts, IMAGE)
    assert [len(each.lookup.failures) for each in found.endpoints] == [1, 0, 0]
    assert users(found)[2] == ("registry.example.com", ["robot"])


def test_without_any_credential_it_says_so(keyring: Keyring, tmp_path: Path) -> None:
    (tmp_path / "registries.conf").touch()
    assert not lookup_endpoints(keyring, RegistriesConf(tmp_path / "registries.conf"), "other.net/app").has_credential


def test_an_explanation_has_order_reason_and_credential_of_each_endpoint(
    keyring: Keyring, hosts: ContainerdHosts
) -> None:
    told = explain_endpoints(hosts, IMAGE, lambda name: explain(keyring, name))
    assert [(each.position, each.is_mirror, each.reason) for each in told.endpoints] == [
        (1, True, "a mirror"),
        (2, True, "a mirror; no image name can have this host, so no credential can be kept for it: "
         "give it a port, or a name with a dot"),
        (0, True, "a mirror, left out: it does not have the capability pull"),
        (3, False, "the registry itself"),
    ]  # fmt: skip
    explained = [each.explanation for each in told.endpoints]
    assert explained[0] is not None
    assert [candidate.username for candidate in explained[0].candidates] == ["mirror-robot"]
    assert explained[1] is explained[2] is None
    assert [candidate.username for candidate in told.own_name.candidates] == ["robot"]
    assert told.endpoints[0].kubelet_credential == "sent here, too"
    assert "every host" in told.kubelet
    assert told.has_credential
    assert CANARY not in repr(told)


def test_a_mirror_of_another_host_does_not_get_the_kubelets_credential_from_crio(
    keyring: Keyring, tmp_path: Path
) -> None:
    file = tmp_path / "registries.conf"
    file.write_text('[[registry]]\nlocation = "other.net"\n[[registry.mirror]]\nlocation = "unknown.net"\n')
    told = explain_endpoints(RegistriesConf(file), "other.net/app", lambda name: explain(keyring, name))
    assert [each.kubelet_credential for each in told.endpoints] == [
        "not sent here: it is another host",
        "sent here, too",
    ]
    assert not told.has_credential
    explanation = told.endpoints[0].explanation
    assert explanation is not None
    assert explanation.conclusion == "no credential: no provider matches this image"
