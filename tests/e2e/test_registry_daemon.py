"""``ostiary registry serve``: one run of a provider for all who pull; and what happens when it is not there."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from ostiary.registry.daemon import client, protocol
from ostiary.registry.user_config import ROOTS_SOCKET
from ostiary.wire.credential_provider import Request, encode_request
from tests.support.registry import Passwords, Registry, write_image
from tests.support.registry_daemon import PROGRAMS, SECONDS, DaemonSite
from tests.support.waiting import until

CANARY = "c4n4ry-c4n4ry-c4n4ry"
LOGIN = {"ServerURL": "a.registry.io", "Username": "robot", "Secret": CANARY}
NOT_FOUND = "credentials not found in native keychain\n"
IMAGE = "a.registry.io/team/app"


@pytest.fixture
def site(tmp_path: Path) -> DaemonSite:
    site = DaemonSite(tmp_path)
    site.provider.answer({"*.registry.io": ("robot", CANARY)}, duration="1h")
    return site


def kubelet_asks(site: DaemonSite, config: Path, image: str = IMAGE, **env: str) -> dict[str, Any]:
    request = encode_request(Request(image)).decode()
    done = site.run("ostiary-credential-provider", "--config", str(config), stdin=request, **env)
    assert done.returncode == 0, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def write_sources(site: DaemonSite) -> Path:
    """A source that counts how often it is asked."""
    shell = f"echo asked >> {site.folder}/asked; echo '{json.dumps({'Username': 'robot', 'Secret': CANARY})}'"
    source = {
        "matchImages": ["*.registry.io"],
        "command": ["sh", "-c", shell],
        "cacheDuration": "1h",
        "cacheKeyType": "Registry",
    }
    path = site.folder / "sources.yaml"
    path.write_text(json.dumps({"apiVersion": "ostiary/v1", "kind": "ImageCredentialSources", "sources": [source]}))
    return path


def times_asked(site: DaemonSite) -> int:
    return len((site.folder / "asked").read_text().splitlines())


# --- one run for all ---


@pytest.mark.slow
def test_two_hundred_pulls_through_the_helper_run_the_provider_once(site: DaemonSite) -> None:
    """I35."""
    with site.serving(), ThreadPoolExecutor(8) as pool:
        outputs = list(pool.map(lambda _: site.get(), range(200)))
        assert {(each.returncode, each.stderr) for each in outputs} == {(0, "")}
        assert [json.loads(each.stdout) for each in outputs] == [LOGIN] * 200
        assert site.provider.runs == 1
        (config,) = site.status()["configs"]
        assert [(each["name"], each["runs"], each["keptAnswers"]) for each in config["providers"]] == [
            ("provider", 1, 1)
        ]


def test_the_kubelets_provider_has_its_sources_asked_once(site: DaemonSite) -> None:
    sources = write_sources(site)
    with site.serving():
        first, *others = [kubelet_asks(site, sources, f"a.registry.io/app-{number}") for number in range(8)]
        assert times_asked(site) == 1
    assert first["auth"] == {"a.registry.io": {"username": "robot", "password": CANARY}}
    assert first["cacheDuration"] == "1h0m0s"
    # What is left of it, and never more: the kubelet keeps it for so long from now.
    assert all(other["auth"] == first["auth"] and other["cacheDuration"].startswith("59m") for other in others)


@pytest.mark.needs("docker-registry", "skopeo", "htpasswd")
def test_skopeo_pulls_again_and_again_with_one_run(tmp_path: Path) -> None:
    passwords = Passwords(tmp_path / "htpasswd")
    passwords.set("alice", "s3cret-1")
    with Registry(tmp_path / "registry", passwords.auth).running() as registry:
        site = DaemonSite(tmp_path / "site", registry.address)
        site.provider.answer({registry.address: ("alice", "s3cret-1")}, duration="1h")
        write_image(tmp_path / "oci")
        image = f"docker://{registry.address}/team/app:v1"
        skopeo = ("skopeo", "--insecure-policy", "copy")
        push = ("--dest-tls-verify=false", "--dest-creds", "alice:s3cret-1", f"oci:{tmp_path / 'oci'}:v1", image)
        assert site.run(*skopeo, *push).returncode == 0
        authfile = tmp_path / "auth.json"
        authfile.write_text(json.dumps({"credHelpers": {registry.address: "ostiary"}}))
        pull = ("--src-tls-verify=false", "--src-authfile", str(authfile), image)
        with site.serving():
            for number in range(5):
                done = site.run(*skopeo, *pull, f"dir:{tmp_path / str(number)}")
                assert done.returncode == 0, done.stderr
            assert site.provider.runs == 1
            # The switch counts for the next pull, with the password still in memory.
            assert site.ostiary("disable", "provider").returncode == 0
            assert site.run(*skopeo, *pull, f"dir:{tmp_path / 'no'}").returncode != 0


def test_erase_makes_the_provider_run_again(site: DaemonSite) -> None:
    with site.serving():
        site.get()
        assert site.run("docker-credential-ostiary", "erase", stdin="a.registry.io").returncode == 0
        site.provider.answer({"*.registry.io": ("robot", "new-password")}, duration="1h")
        assert json.loads(site.get().stdout)["Secret"] == "new-password"
        assert site.provider.runs == 2


def test_a_changed_configuration_counts_within_a_second_and_a_broken_one_does_not(site: DaemonSite) -> None:
    with site.serving() as daemon:
        site.get()
        site.write_config("*.elsewhere.io")
        until(lambda: site.get().stdout == NOT_FOUND)
        site.config.write_text("{")
        done = site.ostiary("reload")
        assert done.returncode == 1
        assert "not in force as it is now" in done.stdout
        daemon.line("the old one stays in force")
        assert site.get("b.elsewhere.io").returncode in (0, 1)


def test_a_failure_is_told_as_without_a_daemon_and_not_kept(site: DaemonSite) -> None:
    site.provider.exit(7).before("echo no network >&2\n")
    with site.serving() as daemon:
        done = site.get()
        assert (done.returncode, done.stdout.startswith("a credential provider failed")) == (1, True)
        assert "no network" in done.stderr
        assert site.get().returncode == 1
        # One run each: the helper does not run it once more when the daemon has.
        assert site.provider.runs == 2
        assert CANARY not in "".join(daemon.lines)


# --- roll-back ---


def test_a_disabled_provider_stops_within_a_second_everywhere_and_comes_back(site: DaemonSite) -> None:
    """I5."""
    sources = write_sources(site)
    with site.serving():
        assert json.loads(site.get().stdout) == LOGIN
        assert kubelet_asks(site, sources)["auth"]
        done = site.ostiary("disable", "--all", "--reason", "it is on fire")
        assert (done.returncode, done.stderr) == (0, "")
        # How long it takes is `provider_switches.LOOK_SECONDS`, and tried with a clock of the test's own.
        until(lambda: site.get().stdout == NOT_FOUND)
        assert "it is on fire" in site.get().stderr
        answer = kubelet_asks(site, sources)
        assert (answer.get("auth"), answer["cacheDuration"]) == (None, "0s")
        assert "disabled" in site.ostiary("explain", IMAGE).stdout
        assert "provider-disabled" in site.ostiary("lint").stdout
        assert site.ostiary("get", IMAGE).returncode == 1
        assert "it is on fire" in site.status()["disabled"][0]
        assert site.ostiary("enable", "--all").returncode == 0
        until(lambda: site.get().stdout != NOT_FOUND)
        assert json.loads(site.get().stdout) == LOGIN
    assert site.provider.runs == 1, "what is in memory is used again"


def test_the_switch_counts_without_a_daemon(site: DaemonSite) -> None:
    sources = write_sources(site)
    no_daemon = {"OSTIARY_REGISTRY_SOCKET": "none"}
    site.ostiary("disable", "ostiary-credential-provider")
    assert "auth" not in kubelet_asks(site, sources, **no_daemon)
    assert json.loads(site.get(**no_daemon).stdout) == LOGIN, "another provider"
    off = {**no_daemon, "OSTIARY_REGISTRY_PROVIDERS": "off"}
    assert site.get(**off).stdout == NOT_FOUND
    unknown = site.get(**{**no_daemon, "OSTIARY_REGISTRY_PROVIDERS": "maybe"})
    assert (unknown.returncode, "registry-switch-unusable" in unknown.stderr) == (1, True)


def test_the_variable_of_one_program_is_not_overruled_by_the_daemon(site: DaemonSite) -> None:
    with site.serving():
        assert json.loads(site.get().stdout) == LOGIN
        assert site.get(OSTIARY_REGISTRY_PROVIDERS="off").stdout == NOT_FOUND


def test_switches_that_cannot_be_trusted_stop_everything(site: DaemonSite) -> None:
    site.switches.write_text("")
    site.switches.chmod(0o666)
    with site.serving():
        done = site.get()
    assert (done.returncode, done.stdout == NOT_FOUND) == (1, False)
    assert "registry-switch-unusable" in done.stderr
    assert site.provider.runs == 0


# --- the daemon is gone, hangs, or is not ours ---


@pytest.mark.slow
def test_a_helper_whose_daemon_is_killed_in_the_middle_asks_the_provider_itself(site: DaemonSite) -> None:
    with site.serving() as daemon, site.provider.held() as hold:
        helper = site.start("docker-credential-ostiary", "get", stdin="a.registry.io")
        hold.wait_for_runs()
        daemon.kill()
        hold.wait_for_runs()
        hold.let_go(2)
        stdout, stderr = helper.communicate(timeout=SECONDS)
    assert json.loads(stdout) == LOGIN
    assert "it ended before it had answered" in stderr
    assert json.loads(site.get().stdout) == LOGIN, "its socket is left behind, and nobody listens there"


@pytest.mark.slow
def test_a_daemon_that_hangs_is_not_waited_for(site: DaemonSite) -> None:
    with site.serving() as daemon:
        daemon.process.send_signal(signal.SIGSTOP)
        try:
            done = site.get()
        finally:
            daemon.process.send_signal(signal.SIGCONT)
    assert json.loads(done.stdout) == LOGIN
    assert "it does not respond" in done.stderr


OTHER_USER = """
import os, socket, sys, time
os.setgid(65534); os.setuid(65534)
listener = socket.socket(socket.AF_UNIX)
listener.bind(sys.argv[1])
os.chmod(sys.argv[1], 0o777)
listener.listen()
print("ready", flush=True)
connection, _ = listener.accept()
print(len(connection.recv(1000)), flush=True)
time.sleep(60)
"""


@pytest.mark.needs("root")
def test_a_socket_of_somebody_else_is_an_error_and_is_told_nothing(site: DaemonSite) -> None:
    folder = site.socket.parent
    folder.mkdir()
    folder.chmod(0o777)
    # The test's own folders are closed to others.
    for parent in site.socket.parents:
        if parent.stat().st_mode & 0o001 == 0:
            parent.chmod(parent.stat().st_mode | 0o011)
    command = [sys.executable, "-c", OTHER_USER, str(site.socket)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        try:
            assert other.stdout.readline() == "ready\n"
            done = site.get()
            assert other.stdout.readline() == "0\n", "not even the name of the registry"
        finally:
            other.kill()
    assert done.returncode == 1
    assert "registry-socket-not-ours" in done.stderr
    assert "belongs to user 65534" in done.stderr
    assert site.provider.runs == 0
    failed = site.ostiary("serve")
    assert (failed.returncode, "registry-socket-unusable" in failed.stderr) == (1, True)


ASKS = """
import os, socket, sys
os.setuid(65534)
connection = socket.socket(socket.AF_UNIX)
connection.settimeout(20)
connection.connect(sys.argv[1])
try:
    connection.sendall(b"ostiary-registry 1 status 0 0 0\\n")
    print(len(connection.recv(100)))
except OSError:
    print(0)
"""


@pytest.mark.needs("root")
def test_the_daemon_tells_somebody_else_nothing(site: DaemonSite) -> None:
    with site.serving() as daemon:
        # As if somebody had opened it to all.
        site.socket.chmod(0o777)
        for parent in site.socket.parents:
            parent.chmod(parent.stat().st_mode | 0o011)
        done = subprocess.run([sys.executable, "-c", ASKS, str(site.socket)], capture_output=True, text=True)
        assert done.stdout == "0\n", done.stderr
        daemon.line("a process of user 65534 was refused")


def test_systemd_passes_the_socket_and_keeps_it(site: DaemonSite, monkeypatch: pytest.MonkeyPatch) -> None:
    # The start of a process is waited for here; the programs run the provider themselves if it takes that long.
    monkeypatch.setattr(client, "ATTENTION_SECONDS", SECONDS)
    site.socket.parent.mkdir(mode=0o700)
    with socket.socket(socket.AF_UNIX) as listener, ThreadPoolExecutor(1) as pool:
        listener.bind(str(site.socket))
        listener.listen()
        number = listener.fileno()
        script = f"exec 3<&{number}; export LISTEN_PID=$$ LISTEN_FDS=1; exec ostiary registry serve --idle 0.1"
        for _ in range(2):
            # As systemd does: when somebody connects, and again when it has ended.
            asking = pool.submit(client.ask, str(site.socket), protocol.STATUS)
            daemon = subprocess.Popen(["bash", "-c", script], env=site.environment, pass_fds=[number])
            code, stdout, _ = asking.result(SECONDS)
            assert (code, json.loads(stdout)["pid"]) == (0, daemon.pid)
            assert daemon.wait(SECONDS) == 0
            assert site.socket.exists()


@pytest.mark.needs("systemd-analyze")
def test_systemd_takes_the_units_and_listens_where_roots_programs_ask(tmp_path: Path) -> None:
    units = Path(__file__).parents[2] / "deploy/systemd"
    for name in ("ostiary-registry.socket", "ostiary-registry.service"):
        text = (units / name).read_text()
        (tmp_path / name).write_text(text.replace("/opt/ostiary/bin/ostiary", str(PROGRAMS / "ostiary")))
    files = [str(path) for path in sorted(tmp_path.iterdir())]
    done = subprocess.run(["systemd-analyze", "verify", "--man=no", *files], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    socket_unit = (units / "ostiary-registry.socket").read_text().splitlines()
    assert f"ListenStream={ROOTS_SOCKET}" in socket_unit
    assert "SocketMode=0600" in socket_unit
