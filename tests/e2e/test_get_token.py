"""``ostiary get-token`` as kubectl runs it: real processes, a real kubectl, a gateway that counts what it is asked."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import trustme

from ostiary.cli import main
from ostiary.cli.cached_token import file_name
from ostiary.cli.login.sessions import FILE, GatewayAccount, Sessions, SignInGrant
from ostiary.model import Secret
from tests.support.kubectl import find_kubectl, newest_exec_version
from tests.support.signin_server import Browser, SigninServer
from tests.support.waiting import until

PROGRAM = [sys.executable, "-m", "ostiary"]
SECONDS = 100
PARALLEL, FEW = 20, 6
Done = subprocess.CompletedProcess[str]


@dataclass
class Desk:
    """Somebody's account on a machine: a home, a browser, and the gateway they use."""

    home: Path
    server: SigninServer
    browser: Browser
    authority: Path
    env: dict[str, str] = field(default_factory=dict)

    def environment(self, **more: str) -> dict[str, str]:
        scripts = str(Path(sys.executable).parent)
        own = {"BROWSER": str(self.browser.path), "PATH": f"{scripts}:{os.environ['PATH']}"}
        return {**os.environ, **own, **self.env, **more}

    def run(self, *words: str, stdin: int = subprocess.DEVNULL, info: str | None = None, **env: str) -> Done:
        if info is not None:
            env["KUBERNETES_EXEC_INFO"] = info
        return subprocess.run(
            [*PROGRAM, *words],
            env=self.environment(**env),
            stdin=stdin,
            capture_output=True,
            text=True,
            timeout=SECONDS,
        )

    def login(self, *words: str) -> None:
        """Sign in quickly: in this process, at a gateway that takes the request for proof."""
        methods, self.server.methods = self.server.methods, [{"name": "here", "kind": "ambient"}]
        assert main(["login", "--server", self.server.url, "--ca", str(self.authority), *words]) == 0
        self.server.methods = methods

    def get_token(self, *words: str, **options: Any) -> Done:
        return self.run("get-token", "--server", self.server.url, *words, **options)

    def token(self, *words: str, **options: Any) -> str:
        done = self.get_token(*words, **options)
        assert (done.returncode, done.stderr) == (0, "")
        return str(json.loads(done.stdout)["status"]["token"])

    def file(self, kind: str, account: str = "default") -> Path:
        folder = self.home / ".local" / "state" / f"ostiary-{os.geteuid()}"
        return folder / f"{file_name(self.server.url, account)}.{kind}"

    def age(self) -> None:
        """The credential that lies ready is to be renewed now."""
        head, _, rest = self.file("token").read_bytes().partition(b"\n")
        words = head.split(b" ")
        self.file("token").write_bytes(b" ".join([*words[:3], b"1", *words[4:]]) + b"\n" + rest)

    def kubeconfig(self, *words: str) -> Path:
        path = self.home / "kubeconfig"
        made = self.run("kubeconfig", "--server", self.server.url, "--ca", str(self.authority), *words)
        assert made.returncode == 0, made.stderr
        path.write_text(made.stdout.replace("k8s.io/v1\n", f"k8s.io/{newest_exec_version()}\n"))
        return path


@pytest.fixture
def server(ca: trustme.CA) -> Iterator[SigninServer]:
    with SigninServer(ca).running() as running:
        yield running


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Modules are compiled once, as those of an installed package are."""
    return {"PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": str(tmp_path_factory.mktemp("compiled"))}


@pytest.fixture
def desk(tmp_path: Path, ca: trustme.CA, server: SigninServer, compiled: dict[str, str]) -> Desk:
    browser = Browser(tmp_path / "browser", ca)
    # The home that all tests have; no setting of the developer is in it.
    return Desk(Path(os.environ["HOME"]), server, browser, tmp_path / "browser" / "authority.pem", compiled)


@contextmanager
def terminal() -> Iterator[int]:
    """A terminal that can be somebody's standard input."""
    person, theirs = pty.openpty()
    try:
        yield theirs
    finally:
        os.close(person)
        os.close(theirs)


def told(version: str = "v1", *, interactive: bool = False, **cluster: Any) -> str:
    spec = {"cluster": cluster, "interactive": interactive} if cluster else {"interactive": interactive}
    fields = {"kind": "ExecCredential", "apiVersion": f"client.authentication.k8s.io/{version}", "spec": spec}
    return json.dumps(fields, separators=(",", ":")) + "\n"


# --- a credential that lies ready ---


def test_a_credential_that_lies_ready_is_printed_and_nobody_is_asked(desk: Desk) -> None:
    desk.login()
    before = dict(desk.server.count)
    done = desk.get_token()
    answer = json.loads(done.stdout)
    assert (done.returncode, done.stderr) == (0, "")
    assert answer["apiVersion"] == "client.authentication.k8s.io/v1"
    assert answer["status"]["token"] in desk.server.tokens
    assert desk.server.count == before


def test_it_costs_no_import_that_the_interpreter_has_not_done_itself(desk: Desk) -> None:
    desk.login()

    def modules(code: str, **env: str) -> set[str]:
        script = f"import sys; sys.argv = ['ostiary', 'get-token']\n{code}\nprint(*sys.modules, file=sys.stderr)"
        command = [sys.executable, "-c", script]
        done = subprocess.run(command, env=desk.environment(**env), capture_output=True, text=True, check=True)
        assert done.stdout.startswith('{"kind":"ExecCredential"') == ("get-token" in code)
        return set(done.stderr.split())

    run = f"from ostiary.cli import main; assert main(['get-token', '--server', {desk.server.url!r}]) == 0"
    own = {"ostiary", "ostiary.cli", "ostiary.cli.cached_token", "time", "posix"}
    assert modules(run) - modules("pass") <= own
    assert modules(run, KUBERNETES_EXEC_INFO=told("v1beta1")) - modules("pass") <= own


@pytest.mark.parametrize("version", ["v1", "v1beta1", "v1alpha1"])
@pytest.mark.parametrize("spaces", [False, True], ids=["as Go writes it", "as Python writes it"])
def test_the_answer_is_in_the_version_that_was_asked_for(desk: Desk, version: str, spaces: bool) -> None:
    desk.login()
    info = told(version)
    if spaces:
        info = json.dumps(dict(sorted(json.loads(info).items())))
    answer = json.loads(desk.get_token(info=info).stdout)
    assert answer["apiVersion"] == f"client.authentication.k8s.io/{version}"
    assert answer["status"]["token"] in desk.server.tokens


def test_a_name_in_the_cluster_s_extension_does_not_choose_the_version(desk: Desk) -> None:
    desk.login()
    config = {"apiVersion": "client.authentication.k8s.io/v1beta1"}
    answer = json.loads(desk.get_token(info=told("v1", server="https://c", config=config)).stdout)
    assert answer["apiVersion"] == "client.authentication.k8s.io/v1"


# --- renewal ---


def test_a_credential_that_soon_expires_is_renewed_without_a_person(desk: Desk) -> None:
    desk.login()
    first = desk.token()
    desk.age()
    second = desk.token(info=told(interactive=False))
    assert first != second
    assert desk.token() == second
    assert desk.server.count["POST /auth/renew"] == 1
    assert desk.browser.tabs == []


def test_many_that_find_it_expired_renew_once(desk: Desk) -> None:
    desk.login()
    desk.age()
    found = _together([[*PROGRAM, "get-token", "--server", desk.server.url]] * FEW, desk)
    assert len({json.loads(done.stdout)["status"]["token"] for done in found}) == 1
    assert desk.server.count["POST /auth/renew"] == 1


def test_when_the_gateway_cannot_be_asked_the_session_is_kept(desk: Desk) -> None:
    desk.login()
    desk.age()
    desk.server.broken = 503
    done = desk.get_token(info=told(interactive=True))
    assert (done.returncode, done.stdout) == (1, "")
    assert "is unavailable" in done.stderr
    desk.server.broken = 0
    assert desk.token(info=told()) in desk.server.tokens
    assert desk.browser.tabs == []


def test_when_another_machine_with_this_home_has_just_renewed_its_credential_is_used(desk: Desk) -> None:
    desk.login()
    desk.age()
    end = datetime.now(UTC) + timedelta(minutes=10)
    theirs = SignInGrant(Secret("theirs"), end, Secret("their-renewal"), "s1", end, "ann")
    sessions = Sessions(GatewayAccount(desk.server.url))
    desk.server.conflicts = [lambda: sessions.save(theirs, store=FILE, authorities_pem=None)]
    assert desk.token(info=told()) == "theirs"
    assert desk.server.count["POST /auth/renew"] == 1


def test_when_an_answer_was_lost_the_gateway_is_asked_for_it_again(desk: Desk) -> None:
    desk.login()
    desk.age()
    desk.server.conflicts = [lambda: None] * 2
    assert desk.token(info=told()) in desk.server.tokens
    assert desk.server.count["POST /auth/renew"] == 3
    assert desk.browser.tabs == []


def test_when_somebody_else_keeps_what_the_renewal_brought_a_person_signs_in_again(desk: Desk) -> None:
    desk.login()
    desk.age()
    desk.server.conflicts = [lambda: None] * 100
    assert "sign-in-needed" in desk.get_token(info=told(interactive=False)).stderr
    asked = desk.server.count["POST /auth/renew"]
    assert asked < 10
    assert desk.get_token(info=_with_authority(desk)).returncode == 0
    assert len(desk.browser.tabs) == 1
    assert desk.server.count["POST /auth/renew"] == asked


@pytest.mark.parametrize("ahead", [timedelta(hours=2), timedelta(hours=-2)], ids=["ahead", "behind"])
def test_a_gateway_whose_clock_differs_makes_no_difference(desk: Desk, ahead: timedelta) -> None:
    desk.server.ahead = ahead
    desk.login()
    first = desk.get_token()
    status = json.loads(first.stdout)["status"]
    left = datetime.fromisoformat(status["expirationTimestamp"]) - datetime.now(UTC)
    assert timedelta(minutes=13) < left <= timedelta(minutes=15)
    assert desk.get_token().stdout == first.stdout
    assert desk.server.count["issued"] == 1


def test_a_gateway_behind_us_that_does_not_tell_its_time_is_an_error_that_says_so(desk: Desk) -> None:
    desk.server.ahead, desk.server.sends_date = timedelta(hours=-2), False
    done = desk.run("login", "--server", desk.server.url, "--ca", str(desk.authority))
    assert done.returncode == 1
    assert "the clocks of this machine and of the gateway differ" in done.stderr


def test_a_clock_that_was_set_back_does_not_make_an_old_credential_good(desk: Desk) -> None:
    desk.login()
    head, _, rest = desk.file("token").read_bytes().partition(b"\n")
    words = head.split(b" ")
    later = str(int(words[2]) + 7200).encode()
    desk.file("token").write_bytes(b" ".join([*words[:2], later, later + b"0", *words[4:]]) + b"\n" + rest)
    assert desk.token() in desk.server.tokens
    assert desk.server.count["POST /auth/renew"] == 1


# --- a credential that lies ready, and is not good any more ---


def test_a_program_that_asks_again_is_not_given_what_was_withdrawn(desk: Desk) -> None:
    """No client tells its plugin of a 401; it runs it again."""
    desk.login()
    first = desk.token(info=told())
    desk.server.tokens.clear()
    assert desk.token(info=told()) != first
    assert desk.server.count["POST /auth/renew"] == 1
    assert desk.browser.tabs == []


def test_a_program_that_asks_for_every_request_does_not_ask_the_gateway_as_often(desk: Desk) -> None:
    desk.login()
    assert len({desk.token(info=told()) for _ in range(4)}) == 1
    assert desk.server.count["GET /auth/whoami"] == 1
    assert desk.server.count["issued"] == 1


def test_when_the_gateway_cannot_be_asked_what_lies_ready_is_the_best_there_is(desk: Desk) -> None:
    desk.login()
    first = desk.token(info=told())
    desk.server.broken = 503
    assert desk.token(info=told()) == first


def test_who_asks_again_after_the_session_was_ended_signs_in_or_is_told_to(desk: Desk) -> None:
    desk.login()
    first = desk.token(info=told())
    desk.server.end_sessions()
    done = desk.get_token(info=told(interactive=False))
    assert (done.returncode, done.stdout) == (1, "")
    assert "sign in first" in done.stderr
    again = desk.get_token(info=_with_authority(desk))
    assert json.loads(again.stdout)["status"]["token"] != first
    assert len(desk.browser.tabs) == 1


# --- signing in ---


def test_without_a_session_and_a_person_it_says_what_to_do(desk: Desk) -> None:
    done = desk.get_token(info=told(interactive=False))
    assert (done.returncode, done.stdout) == (1, "")
    assert "sign in first" in done.stderr
    assert f"ostiary login --server {desk.server.url}" in done.stderr
    assert desk.browser.tabs == []


def test_a_session_that_the_gateway_ended_needs_a_person(desk: Desk) -> None:
    desk.login()
    desk.age()
    desk.server.end_sessions()
    assert "sign-in-needed" in desk.get_token(info=told(interactive=False)).stderr
    assert desk.get_token(info=_with_authority(desk)).returncode == 0
    assert len(desk.browser.tabs) == 1


def test_if_the_client_lets_it_ask_the_browser_opens_and_stdout_stays_clean(desk: Desk) -> None:
    """The browser of this test talks on stdout; the notice is left out, since stderr is no terminal."""
    done = desk.get_token(info=_with_authority(desk))
    assert done.returncode == 0
    assert done.stderr == "a browser that talks on stdout\n"
    assert json.loads(done.stdout)["status"]["token"] in desk.server.tokens
    assert "You can close this page" in desk.browser.pages


def test_when_nobody_comes_nobody_is_asked_again_for_a_while(desk: Desk, ca: trustme.CA, tmp_path: Path) -> None:
    ignored = Browser(tmp_path / "ignored", ca, comes_back=False)
    usual = desk.env
    desk.env = {**usual, "BROWSER": str(ignored.path)}
    first = desk.get_token("--timeout", "1", info=_with_authority(desk))
    assert first.returncode == 1
    assert "the browser did not return" in first.stderr
    second = desk.get_token("--timeout", "1", info=_with_authority(desk))
    assert second.returncode == 1
    assert "not retried for a while" in second.stderr
    assert "ostiary login" in second.stderr
    until(lambda: ignored.tabs)
    assert len(ignored.tabs) == 1
    desk.env = usual
    desk.login()
    assert desk.token() in desk.server.tokens


def test_a_refusal_is_told_here_and_in_the_browser(desk: Desk) -> None:
    desk.server.refuses_in_browser = True
    done = desk.run("login", "--server", desk.server.url, "--ca", str(desk.authority))
    assert done.returncode == 1
    assert "sign-in was refused in the browser" in done.stderr
    assert "You are not signed in" in desk.browser.pages


# --- the file is ours alone, or it is not used ---


def test_a_credential_that_others_may_read_is_refused_until_the_next_login(desk: Desk) -> None:
    desk.login()
    desk.file("token").chmod(0o644)
    done = desk.get_token()
    assert (done.returncode, done.stdout) == (1, "")
    assert "session-file-unsafe" in done.stderr
    desk.login()
    assert desk.token() in desk.server.tokens
    assert desk.file("token").stat().st_mode & 0o777 == 0o600


@pytest.mark.needs("root")
def test_a_credential_of_somebody_else_is_refused(desk: Desk) -> None:
    desk.login()
    os.chown(desk.file("token"), 12345, 12345)
    done = desk.get_token()
    assert (done.returncode, done.stdout) == (1, "")
    assert "session-file-unsafe" in done.stderr


def test_a_link_is_not_followed(desk: Desk) -> None:
    desk.login()
    elsewhere = desk.home / "elsewhere"
    desk.file("token").rename(elsewhere)
    desk.file("token").symlink_to(elsewhere)
    done = desk.get_token()
    assert (done.returncode, done.stdout) == (1, "")
    assert "session-file-unsafe" in done.stderr


@pytest.mark.parametrize("content", [b"", b"ostiary 1 2 3\n", b"\x00" * 100, b"ostiary 1 x y z w\n{}\n"])
def test_a_broken_file_is_replaced(desk: Desk, content: bytes) -> None:
    desk.login()
    desk.file("token").write_bytes(content)
    assert desk.token(info=told()) in desk.server.tokens
    assert desk.server.count["POST /auth/renew"] == 1


def test_a_folder_that_others_may_write_to_is_not_used(desk: Desk) -> None:
    desk.login()
    desk.file("token").parent.chmod(0o777)
    desk.age()
    done = desk.get_token()
    assert (done.returncode, done.stdout) == (1, "")
    assert "session-file-unsafe" in done.stderr


def test_waiting_for_another_process_ends(desk: Desk) -> None:
    desk.login()
    desk.age()
    with desk.file("lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        done = desk.get_token("--timeout", "0.2", info=told())
        assert (done.returncode, done.stdout) == (1, "")
        assert "another process" in done.stderr
    assert desk.token(info=told()) in desk.server.tokens


# --- kubectl ---


@pytest.mark.needs("kubectl")
def test_kubectl_signs_in_by_itself_and_then_stays_signed_in(desk: Desk) -> None:
    """E5, F2, F26."""
    command = [str(find_kubectl()), "--kubeconfig", str(desk.kubeconfig()), "get", "--raw", "/version"]
    with terminal() as stdin:
        done = subprocess.run(
            command, env=desk.environment(), stdin=stdin, capture_output=True, text=True, timeout=SECONDS
        )
    assert done.returncode == 0, done.stderr
    assert "gitVersion" in done.stdout
    again = subprocess.run(
        command, env=desk.environment(), stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=SECONDS
    )
    assert (again.returncode, again.stderr) == (0, "")
    assert len(desk.browser.tabs) == 1
    assert desk.server.count["issued"] == 1


@pytest.mark.slow
@pytest.mark.needs("kubectl")
def test_twenty_kubectls_that_start_at_once_open_one_tab(desk: Desk) -> None:
    command = [str(find_kubectl()), "--kubeconfig", str(desk.kubeconfig()), "get", "--raw", "/version"]
    with terminal() as stdin:
        found = _together([command] * PARALLEL, desk, stdin=stdin)
    assert all("gitVersion" in done.stdout for done in found), [done.stderr for done in found]
    assert len(desk.browser.tabs) == 1
    assert desk.server.count["issued"] == 1


@pytest.mark.needs("kubectl")
def test_many_kubectls_whose_session_was_ended_open_one_tab(desk: Desk) -> None:
    command = [str(find_kubectl()), "--kubeconfig", str(desk.kubeconfig()), "get", "--raw", "/version"]
    desk.login()
    desk.server.end_sessions()
    with terminal() as stdin:
        found = _together([command] * FEW, desk, stdin=stdin)
        # One may have come late enough to be given what another signed in for; kubectl repeats no request.
        assert any("Unauthorized" in done.stderr for done in found)
        assert len(desk.browser.tabs) == 1
        (after,) = _together([command], desk, stdin=stdin)
    assert (after.returncode, after.stderr) == (0, "")
    assert len(desk.browser.tabs) == 1


@pytest.mark.needs("kubectl")
def test_two_accounts_of_one_gateway_do_not_meet(desk: Desk) -> None:
    desk.login("--account", "admin")
    assert desk.token("--account", "admin") in desk.server.tokens
    assert desk.get_token(info=told()).returncode == 1
    path = desk.kubeconfig("--account", "admin", "--name", "as-admin")
    command = [str(find_kubectl()), "--kubeconfig", str(path), "--context", "as-admin", "get", "--raw", "/version"]
    done = subprocess.run(
        command, env=desk.environment(), stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=SECONDS
    )
    assert done.returncode == 0, done.stderr


def _with_authority(desk: Desk) -> str:
    """As kubectl tells it where ``provideClusterInfo`` is true, with somebody at the terminal."""
    from base64 import b64encode

    authority = b64encode(desk.authority.read_bytes()).decode()
    return told(interactive=True, **{"server": desk.server.url, "certificate-authority-data": authority})


def _together(commands: Sequence[Sequence[str]], desk: Desk, stdin: int = subprocess.DEVNULL) -> list[Done]:
    pipe = subprocess.PIPE
    processes = [
        subprocess.Popen(command, env=desk.environment(), stdin=stdin, stdout=pipe, stderr=pipe, text=True)
        for command in commands
    ]
    said = [process.communicate(timeout=SECONDS) for process in processes]
    return [Done(process.args, process.returncode, *texts) for process, texts in zip(processes, said, strict=True)]
