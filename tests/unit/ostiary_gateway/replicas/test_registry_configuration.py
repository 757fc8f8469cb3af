"""The same configuration has the same digest on every machine, and each difference that matters has another."""

from __future__ import annotations

from pathlib import Path

import pytest

from ostiary_gateway.config import loads
from ostiary_gateway.replicas.registry import ConfigurationDigest, key_name, keyed_hash
from ostiary_gateway.testing import FakeClock

CONFIG = """
apiVersion: ostiary.dev/v1
kind: Gateway
listen: {address: 127.0.0.1:8080}
store: {type: memory}
identity: [{name: staff, type: htpasswd, path: users}]
authorization: {chain: [{name: rules, type: rbac, paths: [policy]}]}
"""
ROLE = """
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: %s}
rules: [{apiGroups: [""], resources: [pods], verbs: [get]}]
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return machine(tmp_path / "one")


def machine(folder: Path) -> Path:
    """A folder with the same files as on every other machine."""
    (folder / "policy").mkdir(parents=True)
    (folder / "policy" / "a.yaml").write_text(ROLE % "a")
    (folder / "users").write_text("alice:$2y$04$" + "x" * 53 + "\n")
    return folder


def digest(folder: Path, text: str = CONFIG) -> bytes:
    return ConfigurationDigest(loads(text, directory=folder), FakeClock()).current()


def test_the_same_files_on_another_machine_have_the_same_digest(folder: Path, tmp_path: Path) -> None:
    assert digest(folder) == digest(machine(tmp_path / "two"))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("8080}", "9090}"),
        ("127.0.0.1:8080}", "127.0.0.1:8080, workers: 1}"),
        ("listen: {address: 127.0.0.1:8080}\n", ""),
        ("kind: Gateway", "kind: Gateway # a comment"),
        ("apiVersion: ostiary.dev/v1\nkind: Gateway", "kind: Gateway\napiVersion: ostiary.dev/v1"),
        ("store: {type: memory}", "health: {address: 127.0.0.1:9999}\nstore: {type: memory}"),
    ],
)
def test_what_belongs_to_one_machine_and_how_it_is_written_make_no_difference(folder: Path, old: str, new: str) -> None:
    assert old in CONFIG
    assert digest(folder, CONFIG.replace(old, new)) == digest(folder)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("name: rules", "name: other"),
        ("store: {type: memory}", "store: {type: memory}\ntokens: {lifetime: 5m}"),
        ("8080}", "8080, drain: 1s}"),
        ("paths: [policy]", "paths: [policy, users2.yaml]"),
    ],
)
def test_another_setting_is_another_configuration(folder: Path, old: str, new: str) -> None:
    (folder / "users2.yaml").write_text("")
    assert old in CONFIG
    assert digest(folder, CONFIG.replace(old, new)) != digest(folder)


def test_another_policy_is_another_configuration_also_without_a_reload(folder: Path) -> None:
    watched = ConfigurationDigest(loads(CONFIG, directory=folder), FakeClock())
    first = watched.current()
    (folder / "policy" / "a.yaml").write_text(ROLE % "longer")
    second = watched.current()
    (folder / "policy" / "b.yaml").write_text("")
    third = watched.current()
    assert len({first, second, third}) == 3
    (folder / "policy" / "b.yaml").unlink()
    (folder / "policy" / "a.yaml").write_text(ROLE % "a")
    assert watched.current() == first


def test_users_are_part_of_it(folder: Path) -> None:
    before = digest(folder)
    (folder / "users").write_text("bob:$2y$04$" + "x" * 53 + "\n")
    assert digest(folder) != before


def test_the_inside_of_a_mounted_config_map_is_not(folder: Path) -> None:
    before = digest(folder)
    (folder / "policy" / "..2026_11_16").mkdir()
    (folder / "policy" / ".hidden.yaml").write_text("x")
    assert digest(folder) == before


def test_certificates_and_secrets_are_not_read(folder: Path) -> None:
    text = CONFIG + "webhooks: {tokenReview: true, callers: {tokenFile: secret}}\n"
    (folder / "secret").write_text("one")
    before = digest(folder, text)
    (folder / "secret").write_text("another")
    assert digest(folder, text) == before


def test_a_file_that_cannot_be_read_is_another_content_and_no_failure(folder: Path) -> None:
    watched = ConfigurationDigest(loads(CONFIG, directory=folder), FakeClock())
    before = watched.current()
    (folder / "policy" / "a.yaml").unlink()
    (folder / "policy").rmdir()
    assert watched.current() != before


def test_a_hash_under_another_key_says_nothing() -> None:
    one, two = b"1" * 32, b"2" * 32
    assert keyed_hash(one, "digest") == keyed_hash(one, "digest")
    assert keyed_hash(one, "digest") != keyed_hash(two, "digest")
    assert key_name(one) != key_name(two)
    assert key_name(one) not in keyed_hash(one, "digest")
