"""The clock of the machine is set back while the gateway runs: nothing that ended is good again, nothing escapes."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
import trustme

from tests.support.cluster import Cluster
from tests.support.every_worker import answers_of_all, many_connections
from tests.support.gateway import SECONDS, ServedGateway, Site, role
from tests.support.set_clock import SetClock

PODS = "/api/v1/namespaces/team/pods"
OURS = {"apiGroups": ["ostiary.dev"], "resources": ["*"], "verbs": ["*"]}
HOUR = 3600
USERS = ("alice", "bob", "carol")


@dataclass(frozen=True)
class Running:
    site: Site
    gateway: ServedGateway
    clock: SetClock

    def status(self, token: str) -> int:
        return self.gateway.get(PODS, token).status_code

    def until(self, token: str, status: int) -> None:
        """Ask until it answers so: there is no other sign of what somebody else did."""
        deadline = time.monotonic() + SECONDS
        with self.gateway.http(token) as http:
            while time.monotonic() < deadline:
                # The one that is under way when the token ends is cut.
                with suppress(httpx.RemoteProtocolError):
                    if http.get(PODS).status_code == status:
                        return
        raise AssertionError(f"it never answered {status}")


@pytest.fixture(params=[pytest.param(1, id="one worker"), pytest.param(2, id="two workers", marks=pytest.mark.slow)])
def running(request: pytest.FixtureRequest, ca: trustme.CA, tmp_path: Path) -> Iterator[Running]:
    site, clock = Site(tmp_path / "gateway", ca), SetClock(tmp_path)
    site.users(*USERS, "root")
    site.policy(*(role("team", "pods", User=user) for user in USERS), role("", OURS, User="root"))
    with Cluster(ca) as cluster:
        cluster.add_namespace("team")
        served = site.serving(
            environment=clock.environment,
            listen={"workers": request.param},
            tokens={"revocationFile": "revoked"},
            limits={"failuresPerMinute": 0},
            upstreams=[site.impersonating(cluster)],
        )
        with served as gateway:
            # Whoever starts after a step has seen nothing of it.
            with many_connections(gateway):
                pass
            yield Running(site, gateway, clock)


def by_api(running: Running, user: str) -> None:
    with running.gateway.http(running.gateway.login("root").token) as http:
        answer = http.post("/apis/ostiary.dev/v1/revocations", json={"type": "user", "value": user})
    assert answer.json()["ended"] == 1


def by_command(running: Running, user: str) -> None:
    command = [sys.executable, "-m", "ostiary_gateway", "sessions", "revoke", "user", user, "--config", "gateway.yaml"]
    environment = {**os.environ, **running.clock.environment}
    told = subprocess.run(
        command, check=True, capture_output=True, timeout=SECONDS, cwd=running.site.folder, env=environment
    )
    assert told.stdout == b"1 session ended\n"


def by_file(running: Running, user: str) -> None:
    (running.site.folder / "revoked").write_text(f"user {user}\n")


def test_a_revocation_ends_sessions_that_began_before_the_clock_was_set_back(running: Running) -> None:
    for hours, (user, withdraw) in enumerate(zip(USERS, (by_api, by_command, by_file), strict=True), 1):
        token = running.gateway.login(user).token
        assert running.status(token) == 200
        running.clock.set(-hours * HOUR)
        withdraw(running, user)
        running.until(token, 401)
        again = running.gateway.login(user).token
        assert running.status(again) == 200
        assert running.status(token) == 401


def test_an_expired_token_is_not_accepted_again_when_the_clock_is_set_back(running: Running) -> None:
    """Neither by a worker that saw it expire, nor by the others, nor after a restart."""
    token = running.gateway.login("alice").token
    assert running.status(token) == 200
    running.clock.set(16 * 60)
    # Each worker must have seen the later time: to one that never did, the token has not expired yet.
    assert answers_of_all(running.gateway, token, PODS) == {401}
    running.clock.set(0)
    for _ in range(20):
        assert running.status(token) == 401
    fresh = running.gateway.login("alice").token
    assert running.status(fresh) == 200
    running.gateway.stop()
    running.gateway.start()
    for _ in range(20):
        assert running.status(token) == 401
    assert running.status(fresh) == 200
