"""ostiary on a Python for Windows: installed from its wheel, signed in at a gateway, used by a program, as a plugin."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import trustme

from tests.interop.support.windows import Windows, path, running_windows
from tests.support.cluster import Cluster
from tests.support.gateway import ServedGateway, Site, role
from tests.support.plugins import exec_user, write_kubeconfig

pytestmark = [pytest.mark.timeout(300)]
PODS = "/api/v1/namespaces/team/pods"
INFO = json.dumps(
    {"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", "spec": {"interactive": False}}
)


@pytest.fixture(scope="module")
def windows(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Windows]:
    with running_windows(tmp_path_factory.mktemp("windows")) as windows:
        yield windows


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedGateway]:
    ca = trustme.CA()
    site = Site(tmp_path_factory.mktemp("gateway"), ca)
    site.policy(role("team", "pods", User="ann"))
    identity = {"name": "me", "type": "single_user", "username": "ann"}
    with Cluster(ca) as cluster:
        cluster.add_namespace("team")
        cluster.add_pod("team", "web")
        with site.serving(upstreams=[site.impersonating(cluster)], identity=[identity]) as gateway:
            yield gateway


@pytest.fixture(scope="module")
def signed_in(windows: Windows, gateway: ServedGateway) -> ServedGateway:
    authority = path(gateway.site.folder / "ca.pem")
    done = windows.run("ostiary.exe", "login", "--server", gateway.url(), "--ca", authority)
    assert done.returncode == 0, done.stderr
    return gateway


def get_token(windows: Windows, gateway: ServedGateway) -> dict[str, str]:
    done = windows.run("ostiary.exe", "get-token", "--server", gateway.url(), KUBERNETES_EXEC_INFO=INFO)
    assert done.returncode == 0, done.stderr
    status: dict[str, str] = json.loads(done.stdout)["status"]
    return status


def test_pip_makes_a_program_of_the_entry_point(windows: Windows) -> None:
    assert (windows.scripts / "ostiary.exe").exists()
    assert not (windows.scripts / "ostiary").exists(), "the script for sh"
    done = windows.run("ostiary.exe", "--version")
    assert done.stdout.startswith("ostiary "), done.stderr
    assert "usage: kubectl ostiary " in windows.run("kubectl-ostiary.exe", "--help").stdout


def test_a_person_signs_in_and_the_plugin_has_a_token(windows: Windows, signed_in: ServedGateway) -> None:
    token = get_token(windows, signed_in)["token"]
    assert signed_in.get(PODS, token).status_code == 200
    assert get_token(windows, signed_in)["token"] == token, "from the file"
    assert "ann" in windows.run("ostiary.exe", "whoami", "--server", signed_in.url()).stdout


def test_nobody_else_can_read_the_files(windows: Windows, signed_in: ServedGateway) -> None:
    get_token(windows, signed_in)
    files = [windows.state, *windows.state.iterdir()]
    assert any(file.suffix == ".token" for file in files)
    for file in files:
        # Access lists are modes here, and the group stands for the administrators. The list of askers and the lock
        # hold no secret, and have what the folder hands down, which Wine does not do.
        if file.suffix not in (".asked", ".lock"):
            assert file.stat().st_mode & 0o007 == 0, file


READ = """
from ostiary.cli.login import sessions
from ostiary.errors import ConfigurationError
path = sessions.sessions_folder() + "/probe"
try:
    print(sessions.read(path))
except ConfigurationError as error:
    print(error.code)
"""


def test_a_file_that_others_can_read_is_refused(windows: Windows, signed_in: ServedGateway) -> None:
    (windows.state / "probe").write_text("theirs?")
    (windows.state / "probe").chmod(0o604)
    assert windows.run("python.exe", "-c", READ).stdout.strip() == "session-file-unsafe"
    (windows.state / "probe").chmod(0o600)
    assert windows.run("python.exe", "-c", READ).stdout.strip() == "b'theirs?'"


CLIENT = """
import sys, ostiary
with ostiary.connect(kubeconfig=sys.argv[1]).httpx() as client:
    for _ in range(3):
        print(client.get(sys.argv[2]).status_code)
"""


def test_a_program_uses_the_plugin_through_an_adapter(
    windows: Windows, signed_in: ServedGateway, tmp_path: Path
) -> None:
    user = exec_user("ostiary.exe", args=["get-token", "--server", signed_in.url()])
    cluster = {"certificate-authority": path(signed_in.site.folder / "ca.pem")}
    config = write_kubeconfig(tmp_path / "config", server=signed_in.url(), user=user, cluster=cluster)
    done = windows.run("python.exe", "-c", CLIENT, path(config), PODS)
    assert done.stdout.split() == ["200", "200", "200"], done.stderr


PLUGIN = """
import subprocess, sys
from ostiary.sdk import ExecInfo, Token, exec_plugin

@exec_plugin
def main(info: ExecInfo) -> Token:
    print("a greeting that must not spoil the answer")
    subprocess.run([sys.executable, "-c", "print('nor one of a child')"])
    return Token("secret")

main()
"""


def test_a_plugin_keeps_its_stdout_for_the_answer(windows: Windows) -> None:
    done = windows.run("python.exe", "-c", PLUGIN, KUBERNETES_EXEC_INFO=INFO)
    assert json.loads(done.stdout)["status"] == {"token": "secret"}, done.stderr
    assert "a greeting" in done.stderr
    assert "nor one of a child" in done.stderr


LIMIT = """
import os, subprocess, sys, time
from ostiary.core.process import RunLimits, run
child = "import os, sys, time; open(sys.argv[1], 'w').write(str(os.getpid())); time.sleep(600)"
code = (
    "import subprocess, sys, time\\n"
    f"subprocess.Popen([sys.executable, '-c', {child!r}, sys.argv[1]])\\ntime.sleep(600)"
)
file = sys.argv[1]

def until_both_run(_):
    while not (os.path.exists(file) and open(file).read()):
        time.sleep(0.01)

limits = RunLimits(seconds=2e-6, notice_seconds=1e-6, grace_seconds=0.1)
words = [sys.executable, "-c", code, file]
outcome = run(sys.executable, words, env=dict(os.environ), limits=limits, while_waiting=until_both_run)
from ostiary.core.platform.win32 import windows
print(outcome.ending.value, windows().runs(int(open(file).read())))
"""


def test_at_the_limit_all_processes_of_a_plugin_end(windows: Windows, tmp_path: Path) -> None:
    done = windows.run("python.exe", "-c", LIMIT, path(tmp_path / "number"))
    assert done.stdout.strip() == "timed out False", done.stderr


KEY = """
import sys
from ostiary.core.tls import TlsSettings, build_context, parse_certificate
opened = []

def note(event, arguments):
    if event == "open" and (arguments[2] & 3 or arguments[1] not in (None, "r", "rb")):
        opened.append(str(arguments[0]))

sys.addaudithook(note)
chain, key = (open(name).read() for name in sys.argv[1:])
opened.clear()
build_context(TlsSettings(), parse_certificate(chain, key))
print(opened)
try:
    parse_certificate(chain, key[:100])
except ValueError as error:
    print(error)
"""


def test_a_key_reaches_openssl_through_a_pipe_and_no_file(windows: Windows, tmp_path: Path) -> None:
    leaf = trustme.CA().issue_cert("dev@example.com")
    leaf.cert_chain_pems[0].write_to_path(str(tmp_path / "chain.pem"))
    leaf.private_key_pem.write_to_path(str(tmp_path / "key.pem"))
    before = {str(file) for file in windows.folder.rglob("*") if file.is_file()}
    done = windows.run("python.exe", "-c", KEY, path(tmp_path / "chain.pem"), path(tmp_path / "key.pem"))
    assert len(done.stdout.splitlines()) == 2, done.stderr
    opened, refusal = done.stdout.splitlines()
    assert opened == "[]", "nothing is opened to be written"
    assert "cannot be loaded as PEM" in refusal
    secret = leaf.private_key_pem.bytes().splitlines()[1]
    new = [Path(name) for name in {str(file) for file in windows.folder.rglob("*") if file.is_file()} - before]
    assert not any(secret in file.read_bytes() for file in new)


LOCK = """
from ostiary.cli.login import sessions
path = sessions.sessions_folder() + "/probe.lock"
with sessions.hold_lock(path, 5) as ours, sessions.hold_lock(path, 0.05) as again:
    print(ours, again)
"""


def test_one_at_a_time_holds_a_lock_and_its_end_lets_go(windows: Windows, signed_in: ServedGateway) -> None:
    for _ in range(2):
        assert windows.run("python.exe", "-c", LOCK).stdout.split() == ["True", "False"]


def test_the_completion_for_powershell_is_printed(windows: Windows) -> None:
    done = windows.run("ostiary.exe", "completion", "powershell")
    assert "Register-ArgumentCompleter" in done.stdout, done.stderr
