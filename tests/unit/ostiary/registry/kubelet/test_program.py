"""``ostiary-credential-provider`` as the kubelet runs it: real helpers, files, commands, and TLS."""

from __future__ import annotations

import json
import subprocess
import sys
from base64 import b64decode, b64encode
from collections.abc import Iterator
from dataclasses import replace
from os import environ, pathsep
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import pytest
import trustme

from ostiary.errors import ConfigurationError
from ostiary.model import Secret
from ostiary.registry.kubelet.sources import AuthFile, TokenExchange, load, loads
from ostiary.wire.credential_provider import API_VERSIONS, V1, Request, encode_request
from tests.support.http_server import HttpServer, Response

CANARY = "c4n4ry-c4n4ry-c4n4ry"
TOKEN = "t0ken-of-the-p0d"
IMAGE = "a.registry.io/team/app"
HEAD = "apiVersion: ostiary/v1\nkind: ImageCredentialSources\n"


def config(folder: Path, *sources: dict[str, Any]) -> Path:
    listed = [{"matchImages": ["*.registry.io"], **source} for source in sources]
    path = folder / "sources.yaml"
    path.write_text(HEAD + f"sources: {json.dumps(listed)}\n")
    return path


def run(path: Path, *, bin_dir: Path | None = None, **request: Any) -> subprocess.CompletedProcess[str]:
    search = environ["PATH"] if bin_dir is None else f"{bin_dir}{pathsep}{environ['PATH']}"
    return subprocess.run(
        [sys.executable, "-m", "ostiary.registry.kubelet.program", "--config", path],
        input=encode_request(Request(**{"image": IMAGE, **request})).decode(),
        env={**environ, "PATH": search},
        capture_output=True,
        text=True,
        timeout=100,
    )


def script(path: Path, shell: str) -> Path:
    path.write_text(f"#!/bin/sh\n{shell}\n")
    path.chmod(0o755)
    return path


def login(username: str = "robot", secret: str = CANARY) -> str:
    return json.dumps({"Username": username, "Secret": secret})


def answered(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def failed(done: subprocess.CompletedProcess[str], code: str) -> str:
    assert (done.returncode, done.stdout) == (1, "")
    assert code in done.stderr
    assert CANARY not in done.stderr
    assert TOKEN not in done.stderr
    return done.stderr


# --- where logins come from ---


@pytest.mark.parametrize("version", API_VERSIONS)
def test_a_docker_helper_answers_the_kubelet(tmp_path: Path, version: str) -> None:
    script(tmp_path / "docker-credential-acme", f"cat > {tmp_path}/asked; echo '{login()}'")
    path = config(tmp_path, {"helper": "docker-credential-acme", "cacheDuration": "10m"})
    assert answered(run(path, bin_dir=tmp_path, api_version=version)) == {
        "kind": "CredentialProviderResponse",
        "apiVersion": version,
        "cacheKeyType": "Registry",
        "cacheDuration": "10m0s",
        "auth": {"a.registry.io": {"username": "robot", "password": CANARY}},
    }
    assert (tmp_path / "asked").read_text() == "a.registry.io"


def test_a_source_that_has_nothing_lets_the_next_one_be_asked(tmp_path: Path) -> None:
    script(tmp_path / "docker-credential-empty", "echo credentials not found in native keychain; exit 1")
    auths = {"a.registry.io/team": {"auth": b64encode(f"filed:{CANARY}".encode()).decode()}}
    (tmp_path / "auth.json").write_text(json.dumps({"auths": auths}))
    path = config(tmp_path, {"helper": "empty"}, {"authFile": str(tmp_path / "auth.json")})
    found = answered(run(path, bin_dir=tmp_path))
    assert found["cacheKeyType"] == "Image"
    assert found["auth"] == {IMAGE: {"username": "filed", "password": CANARY}}
    assert "cacheDuration" not in found


def test_a_login_that_json_cannot_carry_is_an_error_and_not_another_password(tmp_path: Path) -> None:
    auth = b64encode(b"filed:" + CANARY.encode() + b"\xff").decode()
    (tmp_path / "auth.json").write_text(json.dumps({"auths": {"a.registry.io": {"auth": auth}}}))
    path = config(tmp_path, {"authFile": str(tmp_path / "auth.json")})
    assert "not UTF-8" in failed(run(path), "docker-helper-answer-invalid")


def test_a_source_that_fails_is_not_passed_over(tmp_path: Path) -> None:
    script(tmp_path / "docker-credential-broken", f"echo {CANARY}; echo the keychain is locked {CANARY} >&2; exit 3")
    path = config(tmp_path, {"helper": "broken"}, {"command": ["echo", login()]})
    assert "the keychain is locked" in failed(run(path, bin_dir=tmp_path), "docker-helper-failed")


@pytest.mark.parametrize("printed", [login(), json.dumps({"username": "robot", "password": CANARY})])
def test_a_command_may_print_a_login_in_two_ways(tmp_path: Path, printed: str) -> None:
    program = script(
        tmp_path / "login", f"read server; echo \"$server $1 $OSTIARY_IMAGE\" > {tmp_path}/asked\necho '{printed}'"
    )
    path = config(tmp_path, {"command": [str(program), "word"], "cacheKeyType": "Registry"})
    assert answered(run(path))["auth"] == {"a.registry.io": {"username": "robot", "password": CANARY}}
    # `read` sees the last line although no newline ends it.
    assert (tmp_path / "asked").read_text().split() == ["a.registry.io", "word", IMAGE]


@pytest.mark.parametrize(
    ("shell", "code"),
    [
        (f"echo {CANARY}", "docker-helper-answer-invalid"),
        (f"echo '{login('<token>')}'", "docker-helper-answer-invalid"),
        (f"echo {CANARY}; echo {CANARY} >&2; exit 4", "docker-helper-failed"),
        ("kill -9 $$", "docker-helper-failed"),
    ],
)
def test_a_command_that_prints_no_login_is_told_without_quoting_it(tmp_path: Path, shell: str, code: str) -> None:
    program = script(tmp_path / "login", shell)
    failed(run(config(tmp_path, {"command": [str(program)]})), code)


def test_a_command_that_is_not_there_is_told(tmp_path: Path) -> None:
    failed(run(config(tmp_path, {"command": ["no-such-command-here"]})), "docker-helper-not-found")


def test_an_image_that_nothing_matches_has_no_credential_and_that_is_not_kept(tmp_path: Path) -> None:
    found = answered(run(config(tmp_path, {"command": ["false"]}), image="quay.io/app"))
    assert (found["cacheKeyType"], found["cacheDuration"], "auth" in found) == ("Image", "0s", False)


# --- token exchange ---


class Exchange(HttpServer):
    """An authorization server that speaks RFC 8693, and says whatever a test wants."""

    def __init__(self, ca: trustme.CA) -> None:
        super().__init__(lambda request: self.response, tls=ca, hostname="127.0.0.1")
        self.url += "/token"
        self.response = Response(body={"access_token": CANARY, "token_type": "Bearer", "expires_in": 300})


@pytest.fixture
def exchange(ca: trustme.CA) -> Iterator[Exchange]:
    with Exchange(ca).running() as server:
        yield server


@pytest.fixture
def authority(ca: trustme.CA, tmp_path: Path) -> str:
    ca.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    return str(tmp_path / "ca.pem")


def exchanging(exchange: Exchange, authority: str, **fields: str) -> dict[str, Any]:
    common = {"url": exchange.url, "username": "oauth2", "certificateAuthority": authority}
    return {"tokenExchange": {**common, **fields}}


def ask(path: Path, token: str = TOKEN) -> subprocess.CompletedProcess[str]:
    return run(path, api_version=V1, service_account_token=Secret(token))


def test_the_service_account_token_is_exchanged_for_the_password(
    tmp_path: Path, exchange: Exchange, authority: str
) -> None:
    path = config(tmp_path, exchanging(exchange, authority, audience="registry", scope="pull"))
    found = answered(ask(path))
    assert found["auth"] == {"a.registry.io": {"username": "oauth2", "password": CANARY}}
    # Half a minute before the token's own end.
    assert (found["cacheKeyType"], found["cacheDuration"]) == ("Registry", "4m30s")
    (request,) = exchange.requests
    assert parse_qs(request.body.decode()) == {
        "grant_type": ["urn:ietf:params:oauth:grant-type:token-exchange"],
        "subject_token": [TOKEN],
        "subject_token_type": ["urn:ietf:params:oauth:token-type:jwt"],
        "audience": ["registry"],
        "scope": ["pull"],
    }


def test_a_shorter_duration_of_the_configuration_wins(tmp_path: Path, exchange: Exchange, authority: str) -> None:
    path = config(tmp_path, {**exchanging(exchange, authority), "cacheDuration": "1m"})
    assert answered(ask(path))["cacheDuration"] == "1m0s"


def test_a_client_with_a_secret_shows_it_in_the_header(tmp_path: Path, exchange: Exchange, authority: str) -> None:
    (tmp_path / "secret").write_text("s:ecret\n")
    fields = {"clientID": "node", "clientSecretFile": str(tmp_path / "secret")}
    answered(ask(config(tmp_path, exchanging(exchange, authority, **fields))))
    (request,) = exchange.requests
    assert b64decode(request.headers["Authorization"].removeprefix("Basic ")) == b"node:s%3Aecret"


@pytest.mark.parametrize(
    ("status", "reply", "told"),
    [
        (400, json.dumps({"error": "invalid_target", "error_description": CANARY}), "status 400: invalid_target"),
        (500, CANARY, "status 500"),
        (200, CANARY, "without an access_token"),
        (200, json.dumps({"access_token": 5}), "without an access_token"),
    ],
)
def test_a_refusal_is_told_and_never_quoted(
    tmp_path: Path, exchange: Exchange, authority: str, status: int, reply: str, told: str
) -> None:
    exchange.response = Response(status, reply.encode())
    path = config(tmp_path, exchanging(exchange, authority))
    assert told in failed(ask(path), "token-exchange-failed")


@pytest.mark.parametrize("status", [301, 302, 307, 308])
def test_the_token_does_not_follow_a_redirect(tmp_path: Path, exchange: Exchange, authority: str, status: int) -> None:
    exchange.response = replace(exchange.response, status=status, headers={"Location": exchange.url})
    failed(ask(config(tmp_path, exchanging(exchange, authority))), "token-exchange-failed")
    assert len(exchange.requests) == 1


def test_a_server_that_is_not_trusted_gets_nothing(tmp_path: Path, exchange: Exchange) -> None:
    source = {"tokenExchange": {"url": exchange.url, "username": "oauth2"}}
    assert "not trusted" in failed(ask(config(tmp_path, source)), "token-exchange-failed")
    assert exchange.requests == []


def test_an_authority_that_cannot_be_loaded_is_told(tmp_path: Path, exchange: Exchange) -> None:
    failed(ask(config(tmp_path, exchanging(exchange, str(tmp_path / "missing.pem")))), "config-unreadable")


def test_an_answer_without_end_is_cut_off(tmp_path: Path, exchange: Exchange, authority: str) -> None:
    exchange.response = Response(body=b" " * (2 << 20))
    failed(ask(config(tmp_path, exchanging(exchange, authority))), "token-exchange-failed")


def test_without_a_token_the_kubelets_configuration_is_to_blame(
    tmp_path: Path, exchange: Exchange, authority: str
) -> None:
    told = failed(run(config(tmp_path, exchanging(exchange, authority))), "credential-provider-request-invalid")
    assert "tokenAttributes" in told


# --- the configuration ---


def test_a_mistake_is_told_with_its_place(subtests: pytest.Subtests) -> None:
    cases = [
        ("{helper: x}", "sources[0].matchImages", "matchImages is missing"),
        ('{matchImages: ["a b"], helper: x}', "sources[0].matchImages", "cannot be parsed"),
        ("{matchImages: [a.io]}", "sources[0]", "needs one of"),
        ("{matchImages: [a.io], helper: x, authFile: /y}", "sources[0]", "not several"),
        ("{matchImages: [a.io], helper: ../x}", "sources[0].helper", "docker credential helper"),
        ("{matchImages: [a.io], authFile: auth.json}", "sources[0].authFile", "absolute"),
        ("{matchImages: [a.io], command: []}", "sources[0].command", "no words"),
        ("{matchImages: [a.io], helper: x, cacheDuration: 5d}", "sources[0].cacheDuration", "unit"),
        ("{matchImages: [a.io], helper: x, cacheDuration: -5m}", "sources[0].cacheDuration", "greater"),
        ("{matchImages: [a.io], helper: x, cacheKeyType: Global}", "sources[0].cacheKeyType", "unknown value"),
        ("{matchImages: [a.io], authFile: /y, cacheKeyType: Registry}", "sources[0].cacheKeyType", "by image"),
        ("{matchImages: [a.io], helper: x, cacheduration: 5m}", "sources[0].cacheduration", "unknown field"),
        (
            "{matchImages: [a.io], tokenExchange: {url: 'http://sts.example.com', username: u}}",
            "sources[0].tokenExchange.url",
            "https",
        ),
        (
            "{matchImages: [a.io], tokenExchange: {url: 'https://sts.example.com'}}",
            "sources[0].tokenExchange.username",
            "missing",
        ),
        (
            "{matchImages: [a.io], tokenExchange: {url: 'https://a', username: u, clientSecretFile: /x}}",
            "sources[0].tokenExchange.clientSecretFile",
            "needs a client",
        ),
    ]
    for source, path, message in cases:
        with subtests.test(source=source, path=path, message=message):
            with pytest.raises(ConfigurationError) as caught:
                loads(f"{HEAD}sources:\n- {source}\n", file="sources.yaml")
            (problem,) = caught.value.problems
            assert message in problem.message
            assert (problem.place.file, problem.place.path, problem.place.line) == ("sources.yaml", path, 4)


def test_paths_are_relative_to_the_configuration_file(tmp_path: Path) -> None:
    folder = tmp_path / "etc"
    folder.mkdir()
    exchange = {
        "url": "https://a",
        "username": "u",
        "clientID": "c",
        "clientSecretFile": "s",
        "certificateAuthority": "ca",
    }
    sources = [
        {"matchImages": ["a.io"], "authFile": "auth.json"},
        {"matchImages": ["a.io"], "authFile": "/etc/auth.json"},
        {"matchImages": ["a.io"], "tokenExchange": exchange},
    ]
    (folder / "sources.yaml").write_text(f"{HEAD}sources: {json.dumps(sources)}\n")
    relative, absolute, exchanged = (source.origin for source in load(folder / "sources.yaml"))
    assert (relative, absolute) == (AuthFile(f"{folder}/auth.json"), AuthFile("/etc/auth.json"))
    assert isinstance(exchanged, TokenExchange)
    assert exchanged.client_secret_file == f"{folder}/s"
    assert exchanged.certificate_authority == f"{folder}/ca"


def test_every_mistake_is_told_at_once() -> None:
    with pytest.raises(ConfigurationError) as caught:
        loads("kind: Pod\nsources: []\n")
    assert [problem.place.path for problem in caught.value.problems] == ["apiVersion", "kind", "sources"]


def test_a_broken_configuration_ends_the_run_before_anything_is_asked(tmp_path: Path) -> None:
    path = config(tmp_path, {"helper": "x", "authFile": "/y"})
    assert "sources[0]" in failed(run(path), "config-invalid")
    failed(run(tmp_path / "missing.yaml"), "config-unreadable")


def test_wrong_usage_is_told(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "ostiary.registry.kubelet.program"],
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert "--config" in done.stderr
