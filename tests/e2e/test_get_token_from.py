"""``ostiary get-token --from`` as kubectl runs it in a CI job or pod: real processes, and what another job gets to see.

The gateway here is a small one that counts what it is asked; tests/e2e/test_ci_jobs.py has the real one.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import trustme

from tests.support.http_server import Response
from tests.support.kubectl import find_kubectl, newest_exec_version
from tests.support.platform_tokens import CANARY, REQUEST_CANARY, GitHubActions, unsigned_token
from tests.support.signin_server import SigninServer

SECONDS = 100
Done = subprocess.CompletedProcess[str]


@dataclass
class Job:
    """A job on a runner: its environment is all that it has, and its home is empty."""

    home: Path
    server: SigninServer
    authority: Path
    variables: dict[str, str] = field(default_factory=dict)

    def environment(self, **more: str) -> dict[str, str]:
        scripts = str(Path(sys.executable).parent)
        own = {"HOME": str(self.home), "PATH": f"{scripts}:{os.environ['PATH']}"}
        compiled = {"PYTHONPYCACHEPREFIX": str(self.authority.parent / "compiled")}
        return {**own, **compiled, **self.variables, **more}

    def run(self, *command: str, **more: str) -> Done:
        return subprocess.run(
            command,
            env=self.environment(**more),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=SECONDS,
        )

    def get_token(self, *words: str, **more: str) -> Done:
        given = ["--server", self.server.url, "--ca", str(self.authority), *words]
        return self.run(sys.executable, "-m", "ostiary", "get-token", *given, **more)

    def token(self, *words: str, **more: str) -> str:
        done = self.get_token(*words, **more)
        assert (done.returncode, done.stderr) == (0, "")
        return str(json.loads(done.stdout)["status"]["token"])

    def on_disk(self) -> str:
        """Everything that lies in the home, as far as it is text."""
        return "".join(path.read_bytes().decode("latin-1") for path in self.home.rglob("*") if path.is_file())


@pytest.fixture
def server(ca: trustme.CA) -> Iterator[SigninServer]:
    with SigninServer(ca).running() as running:
        yield running


@pytest.fixture
def job(tmp_path: Path, ca: trustme.CA, server: SigninServer) -> Job:
    ca.cert_pem.write_to_path(str(tmp_path / "authority.pem"))
    (tmp_path / "home").mkdir()
    return Job(tmp_path / "home", server, tmp_path / "authority.pem")


@pytest.fixture
def actions(job: Job) -> Iterator[GitHubActions]:
    with GitHubActions(unsigned_token).running() as running:
        job.variables.update(running.environment)
        yield running


def test_a_github_job_exchanges_once_and_then_nobody_is_asked(job: Job, actions: GitHubActions) -> None:
    first = job.token("--from", "auto")
    assert job.token("--from", "auto") == first
    assert (len(actions.audiences), job.server.count["exchanged"]) == (1, 1)
    assert actions.audiences == [job.server.url]


def test_another_job_of_the_same_user_gets_nothing_of_it(job: Job, actions: GitHubActions) -> None:
    first = job.token("--from", "github")
    actions.request_token = "another-job"
    second = job.token("--from", "github", ACTIONS_ID_TOKEN_REQUEST_TOKEN="another-job")
    assert second != first
    # One that may not ask for an ID token, as a job of a fork.
    done = job.get_token("--from", "github", ACTIONS_ID_TOKEN_REQUEST_TOKEN="")
    assert (done.returncode, done.stdout) == (1, "")
    assert "id-token: write" in done.stderr
    assert first not in job.on_disk()
    assert second not in job.on_disk()


def test_a_gitlab_job_has_its_token_in_a_variable(job: Job) -> None:
    token = unsigned_token(job.server.url, sub="project_path:acme/shop:ref_type:branch:ref:main")
    job.variables.update({"GITLAB_CI": "true", "OSTIARY_ID_TOKEN": token})
    first = job.token("--from", "auto")
    assert job.token("--from", "auto") == first
    assert job.server.exchanges[0]["subject_token"] == token
    assert job.server.count["exchanged"] == 1


def test_a_pod_on_rotated_tokens_keeps_working(job: Job, tmp_path: Path) -> None:
    """The kubelet replaces the file; the next call exchanges the new token, and nothing of the old one is used."""
    projected = tmp_path / "projected"
    job.variables["OSTIARY_IDENTITY_TOKEN_FILE"] = str(projected)
    tokens = []
    for number in range(3):
        projected.write_text(unsigned_token([job.server.url], jti=str(number)))
        tokens += [job.token("--from", "kubernetes"), job.token("--from", "kubernetes")]
    assert len(set(tokens)) == 3
    assert job.server.count["exchanged"] == 3


def test_a_program_that_asks_again_is_not_given_what_was_withdrawn(job: Job, actions: GitHubActions) -> None:
    kind = {"kind": "ExecCredential"}
    info = json.dumps({**kind, "apiVersion": "client.authentication.k8s.io/v1", "spec": {"interactive": False}})
    first = job.token("--from", "github", KUBERNETES_EXEC_INFO=info)
    job.server.end_sessions()
    assert job.token("--from", "github") == first, "nobody has asked the gateway yet"
    assert job.token("--from", "github", KUBERNETES_EXEC_INFO=info) == first, "this one asks for the first time"
    assert job.token("--from", "github", KUBERNETES_EXEC_INFO=info) != first


def test_the_cached_way_imports_nothing_that_takes_time(job: Job, actions: GitHubActions) -> None:
    words = ["get-token", "--server", job.server.url, "--ca", str(job.authority), "--from", "auto"]
    job.token("--from", "auto")

    def modules(code: str) -> set[str]:
        done = job.run(sys.executable, "-c", f"import sys\n{code}\nprint(*sys.modules, file=sys.stderr)")
        assert done.returncode == 0, done.stderr
        return set(done.stderr.split())

    own = {"ostiary", "ostiary.cli", "ostiary.cli.cached_token", "ostiary.cli.cached_workload_token", "_blake2"}
    run = f"from ostiary.cli import main; assert main({words!r}) == 0"
    assert modules(run) - modules("pass") <= own | {"time", "posix"}
    assert job.server.count["exchanged"] == 1


def test_the_program_ends_as_soon_as_the_cached_credential_is_written(job: Job, actions: GitHubActions) -> None:
    """Nothing is open and nothing is buffered; taking the interpreter apart takes longer than all that was done."""
    token = job.token("--from", "auto")
    words = ["ostiary", "get-token", "--server", job.server.url, "--ca", str(job.authority), "--from", "auto"]
    start = f"import atexit, sys; atexit.register(print, 'late'); sys.argv = {words!r}\n"
    done = job.run(sys.executable, "-c", f"{start}from ostiary.cli import main; sys.exit(main())")
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["status"]["token"] == token, "and nothing after it"


def test_without_a_home_it_works_and_leaves_nothing_behind(job: Job, actions: GitHubActions, tmp_path: Path) -> None:
    del job.variables["GITHUB_ACTIONS"]
    read_only = tmp_path / "nothing" / "here"
    tokens = {job.token("--from", "github", HOME=str(read_only), XDG_STATE_HOME="/proc/nowhere") for _ in range(2)}
    assert len(tokens) == 2
    assert not read_only.exists()


def test_no_secret_is_in_any_output_argument_or_file(job: Job, actions: GitHubActions) -> None:
    token = job.token("--from", "github")
    said = ""
    invalid = Response(400, {"error": "invalid_request", "error_description": "no"})
    for refusal in (None, invalid, Response(503, {}), Response(200, {})):
        job.server.exchange_refusal = refusal
        for words in (["--verbose"], ["--audience", "other"], ["--can", "get pods -A"]):
            done = job.get_token("--from", "auto", *words)
            said += done.stderr
    assert said
    for secret in (token, CANARY, REQUEST_CANARY):
        assert secret not in said
        assert secret not in job.on_disk()


@pytest.mark.needs("kubectl")
def test_kubectl_of_a_job_needs_nothing_but_the_written_context(
    job: Job, actions: GitHubActions, tmp_path: Path
) -> None:
    kubeconfig = tmp_path / "kubeconfig"
    words = ["--server", job.server.url, "--ca", str(job.authority), "--from", "github", "--write", str(kubeconfig)]
    made = job.run(sys.executable, "-m", "ostiary", "kubeconfig", *words)
    assert (made.returncode, made.stderr) == (0, "")
    for secret in (CANARY, REQUEST_CANARY):
        assert secret not in kubeconfig.read_text()
    kubeconfig.write_text(kubeconfig.read_text().replace("k8s.io/v1\n", f"k8s.io/{newest_exec_version()}\n"))
    for _ in range(2):
        done = job.run(str(find_kubectl()), "--kubeconfig", str(kubeconfig), "get", "--raw", "/version")
        assert (done.returncode, done.stderr) == (0, "")
        assert "gitVersion" in done.stdout
    assert job.server.count["exchanged"] == 1
