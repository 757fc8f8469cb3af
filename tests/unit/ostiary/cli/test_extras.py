"""The program without its extras: what needs none works, and what does says which one, in our form."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.gateway import GatewayFolder, role

# None of the libraries that extras bring.
PLAIN = """
import sys
for name in ("argon2", "bcrypt", "cedarpy", "httpx", "joserfc", "keyring", "ldap", "h2", "prometheus_client"):
    sys.modules[name] = None
import ostiary.cli, ostiary_gateway.cli
def main(words):
    return (ostiary if words[0] in ostiary.cli.COMMANDS else ostiary_gateway).cli.main(words)
"""
ONE_COMMAND = PLAIN + "sys.exit(main(sys.argv[1:]))"
# Starting a process takes much longer than most commands.
EACH_COMMAND = (
    PLAIN
    + """
import json
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
done = []
for line in sys.argv[1:]:
    out, err = StringIO(), StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        try:
            code = main(line.split())
        except SystemExit as left:
            code = left.code
    done.append([line, code, out.getvalue(), err.getvalue()])
print(json.dumps(done))
"""
)
Done = subprocess.CompletedProcess[str]


@pytest.fixture
def site(tmp_path: Path) -> GatewayFolder:
    site = GatewayFolder(tmp_path)
    site.policy(role("team", "pods", User="alice"))
    return site


def ostiary(site: GatewayFolder, *words: str) -> Done:
    command = [sys.executable, "-c", ONE_COMMAND, *words]
    return subprocess.run(command, cwd=site.folder, capture_output=True, text=True, timeout=100)


def ostiary_each(site: GatewayFolder, *lines: str) -> list[Done]:
    """The commands one after the other, all in one process."""
    command = [sys.executable, "-c", EACH_COMMAND, *lines]
    output = subprocess.run(command, cwd=site.folder, stdout=subprocess.PIPE, text=True, timeout=100, check=True).stdout
    return [Done(line, code, out, err) for line, code, out, err in json.loads(output)]


def test_the_workload_api_is_told_with_its_extra(site: GatewayFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPIFFE_ENDPOINT_SOCKET", "unix:///nowhere/agent.sock")
    done = ostiary(site, "get-token", "--server", "https://gateway.example", "--from", "spiffe")
    assert (done.returncode, done.stdout) == (1, "")
    assert "hint   pip install 'ostiary[spiffe]'\n" in done.stderr


def test_the_schema_and_a_check_need_no_extra(site: GatewayFolder) -> None:
    schema, checked = ostiary_each(site, "serve --schema", "serve --check --config gateway.yaml")
    assert json.loads(schema.stdout)["type"] == "object", schema.stderr
    assert checked.stdout == "gateway.yaml: OK\n"
    site.path.unlink()
    assert ostiary(site, "serve", "--check").stdout == "the built-in configuration: OK\n"


def test_the_other_commands_need_none(site: GatewayFolder) -> None:
    site.audit_log.write_text("")
    expected = [
        ("can-i get pods -n team --user alice --explain", 0, "yes"),
        ("who-can get pods -n team", 0, "alice"),
        ("explain an-id --server https://localhost:1", 1, "sign-in-needed"),
        ("policy lint policy", 0, ""),
        ("policy diff policy policy", 0, "nobody gains"),
        ("sessions list", 1, "there is no token store yet"),
        ("impersonation-role", 0, "ClusterRole"),
        ("plugins", 0, "rbac"),
        ("login --server https://localhost:1", 1, "gateway-unreachable"),
        ("login --server https://localhost:1 --store keyring", 1, "library-missing"),
        ("whoami --server https://localhost:1", 1, "sign-in-needed"),
        ("kubeconfig --server https://localhost:1", 0, "get-token"),
        ("completion bash", 0, "ostiary"),
        ("registry lint --config none", 1, "none"),
        ("exec explain", 1, "config-not-found"),
    ]
    told = ostiary_each(site, *(line for line, _, _ in expected))
    for done, (line, code, shown) in zip(told, expected, strict=True):
        assert (done.returncode, shown in done.stdout + done.stderr) == (code, True), f"{line}: {done}"
        assert "Traceback" not in done.stderr, line


def test_what_the_providers_log_while_they_are_read_is_a_note(site: GatewayFolder) -> None:
    gone = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "gone"}
    *_, binding = role("", "pods", User="alice")
    site.policy([{**binding, "roleRef": gone}])
    (site.folder / "tokens.db").write_text("")
    for done in ostiary_each(site, "sessions list", "serve --check --config gateway.yaml"):
        (told,) = [each for each in done.stderr.splitlines() if "gone" in each]
        assert told.startswith("ostiary: warning: a role that the RBAC policy binds does not exist"), done.stderr
