"""The extension of a user that names a key which is kept elsewhere."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ostiary.errors import ConfigurationError
from ostiary.keys.address import KeyAddress
from ostiary.kubeconfig import Kubeconfig, Overrides, loads, select
from tests.support.device_keys.handshake import MemoryKey
from tests.unit.ostiary.keys.test_held_key import PRIVATE

NAME = "ostiary.dev/client-key"


def kubeconfig(extension: Any, **user: Any) -> Kubeconfig:
    user = {"client-certificate-data": "eA==", **user, "extensions": [{"name": NAME, "extension": extension}]}
    user = {name: value for name, value in user.items() if value is not None}
    config = {
        "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": {"server": "https://localhost"}}],
        "users": [{"name": "u", "user": user}],
    }
    return loads(json.dumps(config))


def test_the_address_is_read() -> None:
    user = select(kubeconfig({"key": "pkcs11:object=a"})).user
    assert user.device_key == KeyAddress("pkcs11:object=a")
    assert user.has_key


@pytest.mark.parametrize("extension", ["pkcs11:object=a", {}, {"key": 1}, {"key": "a", "pin": "1"}, {"key": "a.pem"}])
def test_another_shape_is_a_mistake_and_not_ignored(extension: Any) -> None:
    with pytest.raises(ConfigurationError, match="cannot be used") as error:
        kubeconfig(extension)
    assert NAME in str(error.value)


def test_key_bytes_beside_it_are_a_mistake() -> None:
    with pytest.raises(ConfigurationError) as error:
        select(kubeconfig({"key": "pkcs11:object=a"}, **{"client-key-data": "eA=="}))
    assert "keep one of the two" in str(error.value)


def test_it_needs_a_certificate() -> None:
    with pytest.raises(ConfigurationError) as error:
        select(kubeconfig({"key": "pkcs11:object=a"}, **{"client-certificate-data": None}))
    assert "has no client certificate" in str(error.value)


def test_the_callers_key_takes_its_place(tmp_path: Path) -> None:
    key = MemoryKey(PRIVATE)
    assert select(kubeconfig({"key": "pkcs11:object=a"}), overrides=Overrides(device_key=key)).user.device_key is key
    file = tmp_path / "other.pem"
    file.touch()
    user = select(kubeconfig({"key": "pkcs11:object=a"}), overrides=Overrides(client_key=str(file))).user
    assert (user.device_key, user.client_key) == (None, str(file))
