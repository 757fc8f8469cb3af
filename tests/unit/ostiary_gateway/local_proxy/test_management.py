"""Making contexts without starting anything: names, ports, and what is kept when a context is made again."""

from __future__ import annotations

import socket
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from ostiary.errors import ConfigurationError
from ostiary_gateway.local_proxy import management
from ostiary_gateway.local_proxy import record as records
from ostiary_gateway.local_proxy.management import FIRST_PORT, LAST_PORT, ContextOptions, free_port, make
from tests.support.plugins import write_kubeconfig

TOKEN = {"token": "real-token"}


@pytest.fixture
def kubeconfig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    path = write_kubeconfig(tmp_path / "config", server="https://one.example", user=TOKEN, namespace="team")
    monkeypatch.setenv("KUBECONFIG", str(path))
    return path


def options(**more: object) -> ContextOptions:
    # Served by nobody: what the proxy does has tests of its own.
    return replace(ContextOptions(starts=False), **more)  # type: ignore[arg-type]


def entries(path: Path) -> dict[str, list[str]]:
    config = yaml.safe_load(path.read_text())
    return {section: [entry["name"] for entry in config[section]] for section in ("clusters", "users", "contexts")}


def test_the_new_context_stands_beside_the_old_one_and_holds_no_secret(kubeconfig: Path) -> None:
    made = make("test", options())
    assert entries(kubeconfig) == {
        "clusters": ["test", "test@ostiary"],
        "users": ["dev", "test@ostiary"],
        "contexts": ["test", "test@ostiary"],
    }
    config = yaml.safe_load(kubeconfig.read_text())
    assert config["current-context"] == "test"
    assert config["contexts"][1]["context"]["namespace"] == "team"
    user = config["users"][1]["user"]
    assert user.keys() == {"exec"}
    assert user["exec"]["args"] == ["connect", "token", "test@ostiary"]
    assert user["exec"]["interactiveMode"] == "Never"
    assert "real-token" not in made.text
    assert "PRIVATE" not in made.text


def test_made_again_it_keeps_its_port_and_certificate(kubeconfig: Path) -> None:
    make("test", options(idle_seconds=3600.0))
    before, text = records.load("test@ostiary"), kubeconfig.read_text()
    make("test", options())
    assert records.load("test@ostiary") == before
    assert before.idle_seconds == 3600
    assert kubeconfig.read_text() == text
    port = free_port()
    make("test", options(port=port))
    assert yaml.safe_load(kubeconfig.read_text())["clusters"][1]["cluster"]["server"] == f"https://127.0.0.1:{port}"


def test_a_certificate_that_ends_soon_is_replaced(kubeconfig: Path) -> None:
    make("test", options())
    old = records.load("test@ostiary")
    records.save(replace(old, certificate=replace(old.certificate, expires_at=1)))
    make("test", options())
    assert records.load("test@ostiary").certificate.authority_pem != old.certificate.authority_pem


def test_what_belongs_to_somebody_else_is_left_alone(kubeconfig: Path, tmp_path: Path) -> None:
    config = yaml.safe_load(kubeconfig.read_text())
    config["users"].append({"name": "test@ostiary", "user": {"token": "somebody's"}})
    kubeconfig.write_text(yaml.safe_dump(config))
    text = kubeconfig.read_text()
    with pytest.raises(ConfigurationError) as raised:
        make("test", options())
    assert raised.value.code == "kubeconfig-name-taken"
    assert "somebody's" not in str(raised.value)
    assert kubeconfig.read_text() == text
    assert records.load_if_known("test@ostiary") is None
    make("test", options(name="other"))
    assert "other" in entries(kubeconfig)["contexts"]

    second = write_kubeconfig(tmp_path / "second", server="https://two.example", user=TOKEN)
    with pytest.raises(ConfigurationError) as raised:
        make("test", options(kubeconfig=str(second), name="other"))
    assert raised.value.code == "kubeconfig-name-taken"


def test_its_own_contexts_and_unknown_ones_are_refused(kubeconfig: Path) -> None:
    make("test", options())
    with pytest.raises(ConfigurationError) as raised:
        make("test@ostiary", options())
    assert "goes through ostiary connect already" in raised.value.summary
    with pytest.raises(ConfigurationError) as raised:
        make("unknown", options())
    assert raised.value.code == "config-not-found"


def test_a_user_whose_requests_must_be_signed_is_refused(tmp_path: Path) -> None:
    signing = {"name": "ostiary.dev/request-signing", "extension": {"command": "acme-sign"}}
    signed = write_kubeconfig(
        tmp_path / "signed", server="https://one.example", user={**TOKEN, "extensions": [signing]}
    )
    with pytest.raises(ConfigurationError) as raised:
        make("test", options(kubeconfig=str(signed)))
    assert "have to be signed" in (raised.value.cause or "")


def test_printed_it_leaves_the_kubeconfig_alone(kubeconfig: Path) -> None:
    text = kubeconfig.read_text()
    made = make("test", options(merges=False))
    assert kubeconfig.read_text() == text
    assert yaml.safe_load(made.text)["current-context"] == "test@ostiary"


def test_a_free_port_is_one_that_nobody_has() -> None:
    port = free_port()
    assert FIRST_PORT <= port < LAST_PORT
    with socket.create_server(("127.0.0.1", port)):
        assert not management._is_free(port)


def test_removing_forgets_and_an_unknown_name_is_told(kubeconfig: Path) -> None:
    make("test", options())
    with pytest.raises(ConfigurationError):
        management.remove(["test@ostiary", "unknown"])
    assert records.load_if_known("test@ostiary") is not None
    management.remove(["test@ostiary"])
    assert records.load_if_known("test@ostiary") is None
    assert management.status() == {"running": False, "contexts": []}
    assert not management.stop()
