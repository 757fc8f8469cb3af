"""Running a gateway: reload, drain, several workers, crashes, probes, logs. All with real processes and signals."""

from __future__ import annotations

import base64
import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import trustme

from tests.support import slow_provider
from tests.support.cluster import Cluster
from tests.support.every_worker import answers_of_all, kept_alive, many_connections, status
from tests.support.gateway import SECONDS, Gateway, ServedGateway, Site, password, role
from tests.support.slow_api import slow_api
from tests.support.streams import line
from tests.support.waiting import until

PODS = "/api/v1/namespaces/team/pods"
ADMIN = "/apis/ostiary.dev/v1"
OURS = {"apiGroups": ["ostiary.dev"], "resources": ["*"], "verbs": ["*"]}
SLOW = {"nonResourceURLs": ["/slow*"], "verbs": ["*"]}
ALICE = [role("team", "pods pods/log", User="alice"), role("", OURS, SLOW, User="root")]
TWO_WORKERS = {"workers": 2}
ALLOW_ALL = {"chain": [{"name": "all", "type": "allow_all"}]}
# In every run two workers are reloaded and stopped by other tests, too.
by_workers = pytest.mark.parametrize(
    "listen", [pytest.param({}, id="one worker"), pytest.param(TWO_WORKERS, id="two workers", marks=pytest.mark.slow)]
)
by_number_of_workers = pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.slow)])


@pytest.fixture
def site(tmp_path: Path, ca: trustme.CA) -> Site:
    site = Site(tmp_path / "gateway", ca)
    site.users("alice", "bob", "root")
    site.policy(*ALICE)
    return site


@pytest.fixture
def cluster(ca: trustme.CA) -> Iterator[Cluster]:
    with Cluster(ca) as cluster:
        cluster.add_namespace("team")
        cluster.add_pod("team", "web")
        yield cluster


# --- starting ---


@pytest.mark.slow
@by_workers
def test_who_reads_that_it_serves_can_use_its_token_store(site: Site, listen: dict[str, Any]) -> None:
    with site.serving(listen=listen):
        assert (site.folder / "tokens.db").exists()


# --- a new configuration ---


class TestReload:
    @pytest.mark.needs("kubectl")
    @by_workers
    def test_nobody_notices_but_by_the_new_policy(self, site: Site, cluster: Cluster, listen: dict[str, Any]) -> None:
        """S44: an open watch and a kept connection go on, and the next request is decided anew."""
        sections: dict[str, Any] = {"listen": listen, "upstreams": [site.impersonating(cluster)]}
        with site.serving(**sections) as gateway:
            alice, bob = gateway.login("alice").token, gateway.login("bob").token
            connection = kept_alive(gateway)
            assert [status(connection, PODS, token) for token in (alice, bob)] == [200, 403]
            with gateway.kubectl(alice).running("get", "pods", "--watch", "-o", "name") as watching:
                assert line(watching) == "pod/web\n"
                cluster.wait_for(lambda record: record.flag("watch"))
                site.policy(*ALICE, role("team", "pods", User="bob"), folder="more")
                chain = [{"name": "cluster", "type": "rbac", "paths": ["more"]}]
                site.write_config(**sections, authorization={"chain": chain})
                gateway.signal(signal.SIGHUP)
                gateway.line("the configuration was reloaded", after=listen.get("workers", 1) - 1)
                assert [status(connection, PODS, token) for token in (alice, bob)] == [200, 200]
                cluster.add_pod("team", "later")
                assert line(watching) == "pod/later\n"
                (site.folder / "gateway.yaml").write_text("{not yaml")
                gateway.signal(signal.SIGHUP)
                gateway.line("the configuration was not reloaded")
                assert status(connection, PODS, bob) == 200
            connection.close()

    @by_number_of_workers
    def test_one_that_comes_before_anybody_listens_to_it_waits(self, site: Site, workers: int) -> None:
        with site.serving(early=True, listen={"workers": workers}) as gateway:
            gateway.signal(signal.SIGHUP)
            gateway.line("the configuration was reloaded")

    def test_a_broken_file_changes_nothing_and_is_told(self, site: Site, cluster: Cluster) -> None:
        sections: dict[str, Any] = {"upstreams": [site.impersonating(cluster)]}
        with site.serving(**sections) as gateway:
            token = gateway.login("alice").token
            connection = kept_alive(gateway)
            broken = ["{not yaml", json.dumps(site.config(**sections, authorization={"chain": []}))]
            # An address cannot change while it is listened on.
            broken.append(json.dumps(site.config(**sections, listen={"address": "127.0.0.1:1"})))
            for number, text in enumerate(broken):
                (site.folder / "gateway.yaml").write_text(text)
                gateway.signal(signal.SIGHUP)
                assert "ERROR" in gateway.line("the configuration was not reloaded", after=number)
                assert status(connection, PODS, token) == 200
            assert "the configuration was reloaded" not in gateway.stderr
            connection.close()

    @by_number_of_workers
    def test_what_was_built_for_a_configuration_that_is_not_used_is_closed(
        self, site: Site, tmp_path: Path, workers: int
    ) -> None:
        closed = site.folder / "closed"
        theirs = [{"name": "theirs", "type": "slow", "journal": "journal"}]
        sections: dict[str, Any] = {"identity": theirs, "listen": {"workers": workers}}
        with site.serving(environment=slow_provider.install(tmp_path / "site"), **sections) as gateway:
            mistaken = site.config(**sections, authorization={"chain": []})
            moved = site.config(identity=theirs, listen={"workers": workers, "address": "127.0.0.1:1"})
            # Found before any worker hears of it, and so built once.
            for config, closings in ((mistaken, 1), (moved, 2)):
                assert gateway.get("/auth", headers={"X-Badge": "zoe"}).status_code == 200
                (site.folder / "gateway.yaml").write_text(json.dumps(config))
                gateway.signal(signal.SIGHUP)
                expected = "closed\n" * closings
                until(lambda: closed.exists() and closed.read_text() == expected)  # noqa: B023  # called at once
            assert gateway.get("/auth", headers={"X-Badge": "zoe"}).status_code == 200

    @pytest.mark.slow
    def test_a_new_certificate_is_shown_to_whoever_connects_next(self, site: Site, cluster: Cluster) -> None:
        sections: dict[str, Any] = {"upstreams": [site.impersonating(cluster)]}
        with site.serving(**sections) as gateway:
            token = gateway.login("alice").token
            connection, old = kept_alive(gateway), certificate(gateway)
            site.new_certificate()
            gateway.signal(signal.SIGHUP)
            gateway.line("the configuration was reloaded")
            assert certificate(gateway) != old
            assert status(connection, PODS, token) == 200
            connection.close()
            # A certificate without its key is not one that could be shown.
            new = certificate(gateway)
            (site.folder / "server.pem").write_text("")
            gateway.signal(signal.SIGHUP)
            gateway.line("the configuration was not reloaded")
            assert certificate(gateway) == new

    @by_workers
    def test_a_renewed_certificate_is_shown_without_being_told(
        self, site: Site, cluster: Cluster, listen: dict[str, Any]
    ) -> None:
        """As in a pod, where nobody sends a signal when the Secret has changed."""
        workers = listen.get("workers", 1)
        with site.serving(upstreams=[site.impersonating(cluster)], listen=listen) as gateway:
            token = gateway.login("alice").token
            connection, old = kept_alive(gateway), certificate(gateway)
            assert gateway.metric("ostiary_gateway_listener_certificate_expiry_timestamp_seconds") > time.time()
            # A worker that had not started yet would begin with the new one, and have no news to tell.
            with many_connections(gateway):
                site.new_certificate()
            written_a_while_ago(site)
            for worker in range(workers):
                gateway.line("the renewed certificate is in use", after=worker)
            new = certificate(gateway)
            assert new != old
            assert status(connection, PODS, token) == 200
            connection.close()
            (site.folder / "server.pem").write_text("")
            written_a_while_ago(site)
            for worker in range(workers):
                gateway.line("the renewed certificate cannot be used", after=worker)
            assert certificate(gateway) == new


def written_a_while_ago(site: Site) -> None:
    """Files that were written a moment ago are not read yet: there may be more to come."""
    for name in ("server.pem", "server.key"):
        moved = (site.folder / name).stat().st_mtime - 60
        os.utime(site.folder / name, (moved, moved))


def certificate(gateway: Gateway) -> bytes | None:
    with gateway.connect() as connection:
        return connection.getpeercert(binary_form=True)


# --- stopping ---


class TestStopping:
    @by_workers
    def test_a_stop_right_after_the_start_is_a_stop_like_any_other(self, site: Site, listen: dict[str, Any]) -> None:
        """From the moment in which an address is told, a signal is a request and not an accident."""
        with site.serving(early=True, listen=listen) as gateway:
            gateway.signal(signal.SIGTERM)
            assert gateway.process.wait(SECONDS) == 0

    @by_workers
    def test_what_was_begun_ends_and_nobody_else_is_let_in(self, site: Site, listen: dict[str, Any]) -> None:
        with slow_api() as (slow, upstream), site.serving(listen=listen, upstreams=[upstream]) as gateway:
            token, idle = gateway.login("root").token, kept_alive(gateway)
            with ThreadPoolExecutor(1) as pool:
                answer = pool.submit(gateway.get, "/slow/report", token)
                assert slow.asked.wait(SECONDS)
                gateway.signal(signal.SIGTERM)
                until(lambda: not accepts(gateway))
                assert gateway.process.poll() is None
                slow.may_answer.set()
                assert answer.result(SECONDS).text == "done"
            gateway.wait()
            idle.close()

    def test_who_asks_twice_does_not_wait(self, site: Site) -> None:
        with slow_api() as (slow, upstream), site.serving(upstreams=[upstream]) as gateway:
            token = gateway.login("root").token
            with ThreadPoolExecutor(1) as pool:
                answer = pool.submit(gateway.get, "/slow/report", token)
                assert slow.asked.wait(SECONDS)
                gateway.signal(signal.SIGTERM)
                until(lambda: not accepts(gateway))
                gateway.signal(signal.SIGTERM)
                gateway.wait()
                assert isinstance(answer.exception(SECONDS), httpx.TransportError)

    @by_workers
    def test_a_load_balancer_has_time_to_notice(self, site: Site, listen: dict[str, Any]) -> None:
        """Until the delay is over, whoever comes is served, and told that the connection ends."""
        with site.serving(listen={**listen, "shutdownDelay": "1h"}) as gateway:
            token = gateway.login("root").token
            with gateway.http(token) as http:
                until(lambda: gateway.probe("/readyz").status_code == 200)
                assert "Connection" not in http.get("/auth/whoami").headers
                gateway.signal(signal.SIGTERM)
                until(lambda: gateway.probe("/readyz").status_code == 503)
                assert "it is stopping" in gateway.probe("/readyz").text
                answer = http.get("/auth/whoami")
                assert (answer.status_code, answer.headers["Connection"]) == (200, "close")
                assert gateway.get("/auth/whoami", token).status_code == 200
            gateway.signal(signal.SIGTERM)
            gateway.wait()


def accepts(gateway: Gateway) -> bool:
    try:
        gateway.connect().close()
    except OSError:
        return False
    return True


# --- several workers ---


def test_two_workers_are_one_gateway(site: Site, cluster: Cluster) -> None:
    """S22, S64, T3: a token of one is good at the other, and so is its end; the figures are those of both."""
    # How many of the refused come to which worker is the system's choice, so that limit is left out here.
    unlimited = {"failuresPerMinute": 0}
    with site.serving(listen=TWO_WORKERS, limits=unlimited, upstreams=[site.impersonating(cluster)]) as gateway:
        until(lambda: gateway.probe("/readyz").status_code == 200)
        assert len(gateway.workers()) == 2
        root = gateway.login("root").token
        tokens = [gateway.login("alice").token for _ in range(6)]
        with many_connections(gateway) as connections:
            for connection in connections:
                assert {status(connection, PODS, token) for token in tokens} == {200}
            served = gateway.metric("ostiary_gateway_requests_total", code="200", verb="list")
            assert served == len(connections) * len(tokens)
            with gateway.http(root) as client:
                assert client.post(f"{ADMIN}/revocations", json={"type": "user", "value": "alice"}).status_code == 201
        # A request that was under way is cut, so these are asked over connections of their own.
        until(lambda: answers_of_all(gateway, tokens[0], PODS) == {401})
        for token in tokens:
            assert answers_of_all(gateway, token, PODS) == {401}

        before = gateway.workers()
        os.kill(min(before), signal.SIGKILL)
        gateway.line("a worker exited and is being replaced")
        until(lambda: len(gateway.workers()) == 2 and gateway.probe("/readyz").status_code == 200)
        assert len(before & gateway.workers()) == 1
        assert answers_of_all(gateway, root, f"{ADMIN}/sessions") == {200}

        # Workers do not outlive whoever started them.
        workers = gateway.workers()
        os.kill(gateway.pid, signal.SIGKILL)
        gateway.process.wait(SECONDS)
        until(lambda: not any(Path(f"/proc/{worker}/exe").exists() for worker in workers))


@pytest.mark.slow
def test_a_worker_that_is_replaced_has_the_configuration_of_the_others(site: Site, cluster: Cluster) -> None:
    """Whatever the file says meanwhile: it counts once it was reloaded, and for all of them."""
    sections: dict[str, Any] = {"listen": TWO_WORKERS, "upstreams": [site.impersonating(cluster)]}
    with site.serving(**sections) as gateway:
        until(lambda: gateway.probe("/readyz").status_code == 200)
        token, before = gateway.login("alice").token, gateway.workers()
        for text in ("{not yaml", json.dumps(site.config(**sections, authorization=ALLOW_ALL))):
            (site.folder / "gateway.yaml").write_text(text)
            os.kill(min(before), signal.SIGKILL)
            gateway.line("a worker exited and is being replaced")
            until(lambda: len(gateway.workers()) == 2 and gateway.probe("/readyz").status_code == 200)
            assert answers_of_all(gateway, token, PODS) == {200}
            assert answers_of_all(gateway, gateway.login("bob").token, PODS) == {403}
            before = gateway.workers()


# --- crashes ---


@pytest.mark.slow
def test_what_was_acknowledged_survives_a_crash(site: Site, cluster: Cluster) -> None:
    """S22, S64: every token that a client was given still works, and every confirmed revocation still holds."""
    names = [f"user-{number}" for number in range(4)]
    site.users(*names, "root")
    site.policy(*(role("team", "pods", User=name) for name in names), role("", OURS, User="root"))
    kept: set[str] = set()
    revoked: set[str] = set()
    enough = threading.Event()
    with site.serving(upstreams=[site.impersonating(cluster)]) as gateway:
        root = gateway.login("root").token

        def sign_in_and_out(name: str) -> None:
            with gateway.http(root) as client:
                for number in range(10_000):
                    try:
                        answer = client.get("/auth", auth=(name, password(name))).json()
                        if number % 3 == 0:
                            # Until it is confirmed, either is right.
                            client.delete(f"{ADMIN}/sessions/{answer['session']}").raise_for_status()
                            revoked.add(answer["token"])
                        else:
                            kept.add(answer["token"])
                    except (httpx.HTTPError, ValueError):
                        return
                    if min(len(kept), 2 * len(revoked)) >= 20:
                        enough.set()

        with ThreadPoolExecutor(len(names)) as pool:
            for name in names:
                pool.submit(sign_in_and_out, name)
            assert enough.wait(SECONDS)
            gateway.kill()
        gateway.start()
        with gateway.http() as client:

            def answered(token: str) -> int:
                return client.get(PODS, headers={"Authorization": f"Bearer {token}"}).status_code

            with ThreadPoolExecutor(4) as pool:
                assert set(pool.map(answered, kept)) == {200}
                assert set(pool.map(answered, revoked)) == {401}


# --- what operators see ---


FIELDS = {
    *("kind", "apiVersion", "level", "auditID", "stage", "requestURI", "verb", "user", "sourceIPs", "userAgent"),
    *("responseStatus", "requestReceivedTimestamp", "stageTimestamp"),
}


def test_probes_figures_and_audit_tell_all_but_secrets(site: Site, cluster: Cluster) -> None:
    """H4, L6: one gateway that sees the good and the bad, and whatever it says about that."""
    sections: dict[str, Any] = {
        "upstreams": [
            site.impersonating(cluster),
            {"name": "gone", "server": "http://127.0.0.1:1", "prefix": "/slow", "attributes": "http"},
        ],
        "log": {"level": "debug", "format": "json"},
    }
    with site.serving(**sections) as gateway:
        login, root = gateway.login("alice"), gateway.login("root")
        assert gateway.probe("/readyz").status_code == 200
        assert gateway.probe("/livez").text == "ok\n"
        # Probes have a port of their own; on the other one these are paths like any.
        assert gateway.get("/readyz", headers={"User-Agent": "kube-probe/1.33"}).status_code == 401
        gateway.get(PODS, login.token, headers={"User-Agent": "marked-agent"})
        gateway.get(f"{PODS}?token={login.token}&access_token={login.token}&code=secret-code", login.token)
        gateway.get("/api/v1/namespaces/team/secrets/x", login.token)
        gateway.get(PODS, login.token[:-1] + "x")
        gateway.get("/auth", auth=("alice", "wrong-password"))
        gateway.get(f"/auth?password={password('alice')}", auth=("alice", "wrong-password"))
        gateway.get(f"/{login.token}", login.token)
        gateway.get("/a//b", login.token)
        for _ in range(3):
            assert gateway.get("/slow/x", root.token).status_code == 503
        unready = gateway.probe("/readyz")
        assert (unready.status_code, "[-] upstream gone" in unready.text) == (503, True)
        answers = "".join(gateway.get(path, login.token).text for path in (PODS, "/slow/x", "/a//b"))
        gateway.get(f"{PODS}?as", login.token, headers={"Impersonate-User": "root"})
        with gateway.http() as client:
            client.post("/auth/renew", data={"renewal_token": login.renewal_token})
            # The second use of a renewal token is refused, and told.
            client.post("/auth/renew", data={"renewal_token": login.renewal_token})
        metrics = gateway.probe("/metrics").text
        assert gateway.metric("ostiary_gateway_requests_total", code="200", upstream="cluster") >= 2
        assert gateway.metric("ostiary_gateway_requests_total", code="403") == 4
    events = site.events()
    assert {event["apiVersion"] for event in events} == {"audit.k8s.io/v1"}
    (event,) = [event for event in events if event.get("userAgent") == "marked-agent"]
    assert set(event) >= FIELDS
    assert (event["verb"], event["user"]["username"], event["sourceIPs"]) == ("list", "alice", ["127.0.0.1"])
    assert event["objectRef"] == {"resource": "pods", "namespace": "team", "apiVersion": "v1"}
    assert event["annotations"]["authorization.k8s.io/decision"] == "allow"
    assert event["auditID"] in {record.value("Audit-ID") for record in cluster.requests}
    assert any(event["responseStatus"]["code"] == 401 and event["user"] == {} for event in events)
    logins = [(event.get("annotations", {}).get("ostiary.dev/login"), event) for event in events]
    refused = [event["responseStatus"]["code"] for kind, event in logins if kind == "refused"]
    assert refused == [401, 401], "as they were answered"
    for row in gateway.stderr.splitlines():
        assert row.startswith("ostiary: ") or json.loads(row)
    everything = {
        "log": gateway.stderr,
        "stdout": (site.folder / "stdout").read_text(),
        "audit": site.audit_log.read_text(),
        "metrics": metrics,
        "readyz": unready.text,
        "answers": answers,
    }
    credential = (site.folder / "token").read_text()
    secrets = [login.token, login.renewal_token, root.token, password("alice"), credential, "secret-code"]
    secrets += ["wrong-password", base64.b64encode(b"alice:wrong-password").decode()]
    found = [(where, secret) for where, text in everything.items() for secret in secrets if secret in text]
    assert found == []


# --- no configuration is named ---


class Installed(ServedGateway):
    """Started as the program `ostiary` is, which imports nothing from the working directory."""

    def command(self) -> list[str]:
        python, *rest = super().command()
        return [python, "-P", *rest]


def test_without_a_name_the_gateway_yaml_of_the_directory_is_served_and_no_code_there_runs(site: Site) -> None:
    """S15: nobody who wrote one finds everything allowed."""
    site.write_config(listen=TWO_WORKERS)
    # Whoever may write there, to `/tmp` for example, would run code in the workers.
    (site.folder / "ssl.py").write_text("raise SystemExit('imported from the working directory')")
    with Installed(site, None, {}) as gateway:
        assert gateway.line("using gateway.yaml in this directory")
        assert gateway.login("alice").user == "alice"
        assert gateway.get("/auth").status_code == 401
        assert "may do everything" not in gateway.stderr
        until(lambda: gateway.probe("/readyz").status_code == 200)


@pytest.mark.needs("curl")
def test_without_a_configuration_it_is_one_user_on_this_machine_and_says_so(site: Site) -> None:
    """S15."""
    gateway = ServedGateway(site, None, {})
    try:
        gateway.start()
    except AssertionError:
        if "cannot listen on" in gateway.stderr:
            pytest.skip("the default port is taken")
        raise
    with gateway_running(gateway):
        assert gateway.url("127.0.0.1") == "http://127.0.0.1:8443"
        for warning in (
            *("there is no gateway.yaml in this directory", "one user, and all actions allowed"),
            *("kept in memory", "there is no upstream"),
        ):
            assert warning in gateway.stderr
        said = json.loads(curl(gateway.url("127.0.0.1") + "/auth"))
        sessions = curl(f"{gateway.url('127.0.0.1')}{ADMIN}/sessions", f"Authorization: Bearer {said['token']}")
        assert [item["user"] for item in json.loads(sessions)["items"]] == [said["user"]]
        # A page that points its own name at this machine gets nothing.
        assert "token" not in json.loads(curl(gateway.url("127.0.0.1") + "/auth", "Host: evil.test"))
        assert json.loads(curl(f"{gateway.url('127.0.0.1')}{ADMIN}/sessions"))["code"] == 401


@contextmanager
def gateway_running(gateway: ServedGateway) -> Iterator[None]:
    try:
        yield
    except BaseException:
        gateway.kill()
        raise
    gateway.stop()


def curl(url: str, *headers: str) -> str:
    lines = [argument for header in headers for argument in ("--header", header)]
    return subprocess.run(
        ["curl", "--silent", "--max-time", "20", *lines, url], check=True, capture_output=True, text=True
    ).stdout
