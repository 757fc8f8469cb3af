"""Audit providers of the configuration, bundled and foreign, in a gateway that serves requests (S70)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ostiary.errors import AuditUnavailable, ConfigurationError
from ostiary_gateway.config import loads
from tests.support.http1 import upstream
from tests.unit.ostiary_gateway import acme, foreign
from tests.unit.ostiary_gateway.proxy.gateways import Gateway, at, configured, serving

LOG = {"log": {"path": "audit.log"}}


@pytest.fixture(autouse=True)
def foreign_package(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    # The patch of the test itself: with two of them, the one that is undone last would bring the package back.
    acme.install(tmp_path_factory.mktemp("site"), monkeypatch, foreign.ENTRY_POINTS, package="foreign")


def provider(site: Gateway, name: str) -> Any:
    return next(each.instance for each in site.worker.app.config.audit_sinks if each.name == name)


def load_with(folder: Path, audit: dict[str, object] | None) -> None:
    text = {
        "apiVersion": "ostiary.dev/v1",
        "kind": "Gateway",
        "store": {"type": "memory"},
        "identity": [{"name": "me", "type": "single_user"}],
        "authorization": {"chain": [{"name": "all", "type": "allow_all"}]},
        **({} if audit is None else {"audit": audit}),
    }
    loads(json.dumps(text), directory=folder)


async def test_every_provider_gets_every_event(tmp_path: Path) -> None:
    """S70: a foreign one as well as the bundled ones."""
    sinks = [{"name": "copy", "type": "file", "path": "copy.log"}, {"name": "acme", "type": "held_up"}]
    async with (
        upstream() as made,
        serving(configured(tmp_path, at(made), audit={**LOG, "sinks": sinks})) as site,
    ):
        foreign_one = provider(site, "acme")
        foreign_one.gate.set()
        assert (await site.ask()).status == 200
    logs = [(tmp_path / name).read_text().splitlines(keepends=True) for name in ("audit.log", "copy.log")]
    assert logs[0] == logs[1] == foreign_one.kept
    assert json.loads(logs[0][-1])["stage"] == "ResponseComplete"


async def test_a_provider_that_hangs_holds_up_no_request_and_what_it_misses_is_counted(tmp_path: Path) -> None:
    """S70."""
    sinks = [{"name": "acme", "type": "held_up"}]
    async with (
        upstream() as made,
        serving(configured(tmp_path, at(made), audit={**LOG, "sinks": sinks})) as site,
    ):
        for _ in range(10):
            assert (await site.ask()).status == 200
        assert site.worker.app.auditor.dropped > 0
        provider(site, "acme").gate.set()
    assert len((tmp_path / "audit.log").read_text().splitlines()) >= 10


async def test_a_provider_that_raises_refuses_nobody(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """S70."""
    sinks = [{"name": "acme", "type": "raising"}]
    async with (
        upstream() as made,
        serving(configured(tmp_path, at(made), audit={**LOG, "sinks": sinks})) as site,
    ):
        assert (await site.ask()).status == 200
        assert site.worker.app.auditor.dropped > 0
    assert "canary" not in caplog.text


@pytest.mark.parametrize("kind", ["raising", "held_up"])
async def test_blocking_no_request_passes_that_a_provider_cannot_keep(tmp_path: Path, kind: str) -> None:
    """S70: the upstream is never reached."""
    sinks = [{"name": "acme", "type": kind}]
    async with (
        upstream() as made,
        serving(configured(tmp_path, at(made), audit={"blocking": True, "sinks": sinks})) as site,
    ):
        statuses = [(await site.ask()).status for _ in range(6)]
        assert statuses[-1] == 500
        assert len(made.requests) == statuses.count(200)
        if kind == "held_up":
            provider(site, "acme").gate.set()


async def test_a_file_that_cannot_be_opened_keeps_the_gateway_from_starting(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    sinks = [{"name": "copy", "type": "file", "path": "folder"}]
    config = configured(tmp_path, "http://127.0.0.1:1", audit={"sinks": sinks})
    with pytest.raises(AuditUnavailable):
        async with serving(config):
            pass


@pytest.mark.parametrize(
    ("audit", "place", "message"),
    [
        ({"sinks": [{"name": "a", "type": "misspelt"}]}, "audit.sinks[0].type", "it has no store"),
        ({"sinks": [{"name": "a", "type": "nothing"}]}, "audit.sinks[0].type", 'unknown audit provider "nothing"'),
        ({"sinks": [{"name": "a", "type": "file"}]}, "audit.sinks[0].path", "missing"),
        ({"sinks": [{"name": "a", "type": "stdout"}] * 2}, "audit.sinks[1].name", "duplicate name"),
        ({"log": {"paths": "audit.log"}}, "audit.log.path", "missing"),
        ({"log": {"path": "audit.log", "sync": True}}, "audit.log.sync", "unknown"),
        ({"webhook": {"url": "http://audit.example.com/"}}, "audit.webhook.url", "plain text"),
    ],
)
def test_a_mistake_is_told_with_its_place(tmp_path: Path, audit: dict[str, object], place: str, message: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        load_with(tmp_path, audit)
    problems = {problem.place.path: problem.message for problem in caught.value.problems}
    assert message in problems.get(place, str(problems))
    assert place in problems


@pytest.mark.parametrize(
    ("audit", "place"), [({"stdout": True}, "audit"), (None, "audit"), ({"log": {"path": "audit.log"}}, "audit.log")]
)
def test_a_key_that_another_package_claims_too_stops_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, audit: dict[str, object] | None, place: str
) -> None:
    """S70: no request passes without a record because of what somebody has installed."""
    points = "[ostiary.audit]\nacme = acme:Acme\n[ostiary.audit_key]\nlog = acme:Acme\nstdout = acme:Acme\n"
    acme.install(tmp_path / "site", monkeypatch, points, package="rival")
    with pytest.raises(ConfigurationError) as caught:
        load_with(tmp_path, audit)
    assert [problem.place.path for problem in caught.value.problems] == [place]
    assert "says which provider this key stands for" in str(caught.value)
