"""Replicas in processes of their own that share one token store: they see each other, and one store has one owner."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, TypeVar

import pytest
import trustme

from tests.support.gateway import SECONDS, Gateway, ServedGateway, Site, role
from tests.support.postgresql import PostgresServer
from tests.support.postgresql_store import settings_for
from tests.support.redis import RedisServer, redis_server

OURS = {"apiGroups": ["ostiary.dev"], "resources": ["*"], "verbs": ["*"]}
T = TypeVar("T")
_numbers = count()


class Replicated:
    """Folders of several replicas, with one token store beside them."""

    def __init__(self, folder: Path, ca: trustme.CA, store: dict[str, Any]) -> None:
        self.folder, self._ca, self._store = folder, ca, store

    def site(self, name: str) -> Site:
        site = Site(self.folder / name, self._ca)
        site.users("root", "alice")
        site.policy(role("", OURS, User="root"))
        # The same for all: what is hashed with a random salt differs from folder to folder.
        users = self.folder / "users"
        if not users.exists():
            users.write_text((site.folder / "users").read_text())
        (site.folder / "users").write_text(users.read_text())
        return site

    def serving(self, name: str, **sections: Any) -> ServedGateway:
        sections.setdefault("externalURL", "https://gateway.example")
        return self.site(name).serving(store=self._store, **sections)


# For what is asked of the store itself; all else is the same with every store.
each_store = pytest.mark.parametrize(
    "store", ["postgresql", pytest.param("redis", marks=pytest.mark.slow)], indirect=True
)


@pytest.fixture
def store(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, Any]:
    """A store of its own for each test."""
    if getattr(request, "param", "postgresql") == "redis":
        redis: RedisServer = request.getfixturevalue("redis_of_replicas")
        return {"type": "redis", "address": redis.address, "prefix": f"replicas-{next(_numbers)}"}
    server: PostgresServer = request.getfixturevalue("postgresql_15")
    settings = settings_for(server, folder=tmp_path)
    return {
        "type": "postgresql",
        "hosts": list(settings.hosts),
        "database": settings.database,
        "user": settings.user,
        "passwordFile": str(settings.password_file),
        "schema": settings.schema,
    }


@pytest.fixture
def replicated(tmp_path: Path, ca: trustme.CA, store: dict[str, Any]) -> Replicated:
    return Replicated(tmp_path, ca, store)


def eventually(look: Callable[[], T], is_right: Callable[[T], bool]) -> T:
    """What *look* sees once it is right; a failure shows the last of it."""
    deadline = time.monotonic() + SECONDS
    while not is_right(seen := look()) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert is_right(seen), seen
    return seen


def replicas(gateway: Gateway, token: str) -> list[dict[str, Any]]:
    answer = gateway.get("/apis/ostiary.dev/v1/replicas", token)
    assert answer.status_code == 200, answer.text
    items: list[dict[str, Any]] = answer.json()["items"]
    return items


def status(gateway: Gateway, token: str, *options: str) -> subprocess.CompletedProcess[str]:
    file = gateway.site.folder / "token"
    file.write_text(token)
    ca = gateway.site.folder / "ca.pem"
    command = ["status", "--server", gateway.url(), "--token-file", str(file), "--ca", str(ca), *options]
    return subprocess.run(
        [sys.executable, "-m", "ostiary_gateway", *command], capture_output=True, text=True, check=False
    )


@each_store
def test_every_replica_is_seen_from_every_replica(replicated: Replicated) -> None:
    with replicated.serving("a") as a, replicated.serving("b", listen={"workers": 2}) as b:
        token = a.login("root").token
        for gateway in (a, b):
            seen = eventually(
                partial(replicas, gateway, token),
                lambda items: len(items) == 2 and all(item["ready"] for item in items),
            )
            assert {item["pid"]: item["workers"] for item in seen} == {a.pid: 1, b.pid: 2}
            assert {item["host"] for item in seen} == {socket.gethostname()}
            assert [item["configuration"]["compared"] for item in seen] == ["same", "same"]
            eventually(partial(gateway.metric, "ostiary_gateway_replicas"), lambda number: number == 2)
            assert gateway.metric("ostiary_gateway_replicas_other_configuration") == 0
        b.stop()
        assert [item["pid"] for item in replicas(a, token)] == [a.pid]


@pytest.mark.slow
def test_a_replica_that_was_killed_is_silent_and_status_says_so(replicated: Replicated) -> None:
    with replicated.serving("a") as a, replicated.serving("b") as b:
        token = a.login("root").token
        eventually(lambda: replicas(a, token), lambda items: len(items) == 2)
        assert status(a, token).returncode == 0
        b.kill()
        (silent,) = eventually(
            lambda: [item for item in replicas(a, token) if not item["ready"]], lambda items: len(items) == 1
        )
        assert silent["pid"] == b.pid
        shown = status(a, token)
        assert shown.returncode == 1
        assert "is not ready: silent for" in shown.stderr


@pytest.mark.slow
def test_a_replica_with_another_policy_is_told_in_log_metrics_and_status(replicated: Replicated) -> None:
    with replicated.serving("a") as a, replicated.serving("b") as b, replicated.serving("c") as c:
        token = a.login("root").token
        eventually(lambda: replicas(a, token), lambda items: len(items) == 3)
        # No reload: a policy is read again when its file changes.
        c.site.policy(role("", OURS, User="root"), role("team", "pods", User="alice"))
        other = "ostiary_gateway_replicas_other_configuration"
        for gateway in (a, b, c):
            eventually(partial(gateway.metric, other), lambda number: number == 1)
            gateway.line("other replicas have another configuration than this one")
        (item,) = (item for item in replicas(b, token) if item["configuration"]["compared"] == "other")
        assert item["pid"] == c.pid
        assert item["configuration"]["hash"] in a.line("other replicas have another configuration")
        shown = status(a, token)
        assert (shown.returncode, shown.stdout.count("OTHER")) == (1, 1)
        assert "normal only during an update" in shown.stderr
        c.site.policy(role("", OURS, User="root"))
        a.line("all replicas have the same configuration")
        assert status(a, token).returncode == 0


def explained(gateway: Gateway, token: str, request_id: str) -> int:
    return gateway.get(f"/apis/ostiary.dev/v1/decisions/{request_id}", token).status_code


@each_store
def test_what_one_replica_refused_every_other_explains(replicated: Replicated) -> None:
    with replicated.serving("a", listen={"workers": 2}) as a, replicated.serving("b") as b:
        root, alice = b.login("root").token, a.login("alice").token
        refused = a.get("/apis/ostiary.dev/v1/sessions", alice)
        assert refused.status_code == 403
        unknown = a.get("/apis/ostiary.dev/v1/sessions", "nobody-knows-this-token")
        assert unknown.status_code == 401
        for answer in (refused, unknown):
            number = answer.headers["Audit-Id"]
            eventually(partial(explained, b, root, number), lambda status: status == 200)
        decision = b.get(f"/apis/ostiary.dev/v1/decisions/{refused.headers['Audit-Id']}", root).json()
        assert (decision["attributes"]["user"], decision["attributes"]["resource"]) == ("alice", "sessions")
        assert explained(b, root, "00000000-0000-0000-0000-000000000000") == 404


def test_a_refusal_outlives_the_replica_that_made_it(replicated: Replicated) -> None:
    with replicated.serving("b") as b:
        root = b.login("root").token
        with replicated.serving("a") as a:
            answer = a.get("/apis/ostiary.dev/v1/sessions", a.login("alice").token)
            # It stops before it would have written its next batch.
            a.stop()
        assert explained(b, root, answer.headers["Audit-Id"]) == 200


def test_the_store_of_another_gateway_opens_nothing(replicated: Replicated) -> None:
    with replicated.serving("a") as a:
        token = a.login("root").token
        with replicated.serving("b", externalURL="https://other.example", listen={"workers": 2}) as b:
            line = b.line("the token store belongs to another gateway")
            assert "https://gateway.example" in line
            assert "ostiary-gateway store check --take-over" in line
            assert b.get("/apis/ostiary.dev/v1/sessions", token).status_code == 503
            assert b.get("/auth", auth=("root", "password-of-root")).status_code == 503
            # A worker that is still starting says nothing of the store.
            ready = eventually(lambda: b.probe("/readyz"), lambda answer: "belongs to another gateway" in answer.text)
            assert ready.status_code == 503
            assert "gateway.example" not in ready.text
            assert [item["pid"] for item in replicas(a, token)] == [a.pid]
        assert [item["user"] for item in a.get("/apis/ostiary.dev/v1/sessions", token).json()["items"]] == ["root"]


@pytest.mark.slow
@pytest.mark.parametrize("store", ["redis"], indirect=True)
def test_a_store_that_is_taken_over_is_used_without_a_restart(replicated: Replicated) -> None:
    with replicated.serving("a") as a:
        token = a.login("root").token
        with replicated.serving("b", externalURL="https://other.example", listen={"workers": 2}) as b:
            assert b.probe("/readyz").status_code == 503
            config = str(b.site.folder / "gateway.yaml")
            command = [sys.executable, "-m", "ostiary_gateway", "store", "check", "--take-over", "--config", config]
            taken = subprocess.run(command, capture_output=True, text=True, check=False)
            assert taken.returncode == 0, taken.stderr
            eventually(lambda: b.probe("/readyz").status_code, lambda status: status == 200)
            # The gateway that had it is shut out.
            eventually(lambda: a.probe("/readyz").status_code, lambda status: status == 503)
            eventually(lambda: a.get("/apis/ostiary.dev/v1/sessions", token).status_code, lambda code: code == 503)
            eventually(
                lambda: [item["pid"] for item in replicas(b, token) if item["ready"]], lambda pids: pids == [b.pid]
            )


@pytest.mark.slow
def test_a_store_that_is_away_at_the_start_is_claimed_before_anybody_gets_in(tmp_path: Path, ca: trustme.CA) -> None:
    with redis_server(tmp_path / "redis") as redis:
        replicated = Replicated(tmp_path, ca, {"type": "redis", "address": redis.address})
        redis.kill()
        with replicated.serving("a") as a:
            assert a.get("/auth", auth=("root", "password-of-root")).status_code == 503
            assert a.get("/apis/ostiary.dev/v1/sessions", "some-token").status_code in (401, 503)
            assert a.probe("/readyz").status_code == 503
            redis.start()
            eventually(lambda: a.probe("/readyz").status_code, lambda status: status == 200)
            token = a.login("root").token
            assert len(eventually(lambda: replicas(a, token), bool)) == 1
            with replicated.serving("b", externalURL="https://other.example") as b:
                b.line("the token store belongs to another gateway")


def test_a_reload_with_an_address_that_the_store_does_not_belong_to_changes_nothing(replicated: Replicated) -> None:
    with replicated.serving("a") as a:
        token = a.login("root").token
        path = a.site.folder / "gateway.yaml"
        config = json.loads(path.read_text())
        path.write_text(json.dumps({**config, "externalURL": "https://moved.example"}))
        a.signal(signal.SIGHUP)
        assert "https://gateway.example" in a.line("the configuration was not reloaded")
        assert len(replicas(a, token)) == 1


def test_status_of_a_lone_gateway_shows_itself(tmp_path: Path, ca: trustme.CA) -> None:
    site = Site(tmp_path / "lone", ca)
    site.users("root")
    site.policy(role("", OURS, User="root"))
    with site.serving() as gateway:
        token = gateway.login("root").token
        shown = status(gateway, token, "-o", "wide")
        assert (shown.returncode, shown.stderr) == (0, "")
        header, row = shown.stdout.splitlines()
        assert header.split()[:3] == ["NAME", "VERSION", "CONFIG"]
        assert row.split()[:1] == [socket.gethostname()]
        assert str(gateway.pid) in row.split()
        environment = {**os.environ, "NO_COLOR": "1"}
        command = [sys.executable, "-m", "ostiary_gateway", "status", "--config", str(site.folder / "gateway.yaml")]
        local = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
        assert (local.returncode, "ostiary-gateway status --server URL" in local.stderr) == (1, True)
