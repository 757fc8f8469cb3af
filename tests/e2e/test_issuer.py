"""The gateway as an issuer, as those see it who use it: kubectl's exec plugin, a verifier of npm, a follower."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from base64 import urlsafe_b64decode
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import trustme
import yaml

from ostiary.cli.cached_token import file_name
from ostiary.cli.login.sessions import FILE, GatewayAccount, Sessions, SignInGrant
from ostiary.model import Secret
from ostiary_gateway.issuer.keys import SigningKey
from tests.support.gateway import Login, ServedGateway, Site
from tests.support.oidc_provider import installed
from tests.support.ports import free_port
from tests.support.programs import module_of
from tests.support.waiting import until

AUDIENCE = "https://prod.example"
CALLER = "token-of-the-api-server"
EXCHANGE = {
    "grant_type": "urn:ietf:params:oauth:grant-type:token-exchange",
    "subject_token_type": "urn:ietf:params:oauth:token-type:access_token",
    "requested_token_type": "urn:ietf:params:oauth:token-type:jwt",
}
SECONDS = 60.0
Done = subprocess.CompletedProcess[str]


@dataclass
class Desk:
    """Somebody who is signed in at a gateway that signs JWTs."""

    site: Site
    gateway: ServedGateway
    home: Path
    login: Login

    def run(self, *words: str, **env: str) -> Done:
        environment = {**os.environ, "HOME": str(self.home), "XDG_STATE_HOME": str(self.home / "state"), **env}
        command = [sys.executable, "-m", module_of(words[0]), *words]
        return subprocess.run(
            command, cwd=self.site.folder, env=environment, capture_output=True, text=True, timeout=SECONDS
        )

    def jwt(self, *words: str, **env: str) -> str:
        done = self.run("get-token", "--server", self.gateway.url(), "--jwt-for", AUDIENCE, *words, **env)
        assert (done.returncode, done.stderr) == (0, "")
        return str(json.loads(done.stdout)["status"]["token"])

    def files(self, kind: str) -> list[Path]:
        return sorted(self.home.glob(f"state/*/*.{kind}"))


def claims(token: str) -> dict[str, Any]:
    body = token.split(".")[1]
    said: dict[str, Any] = json.loads(urlsafe_b64decode(body + "=" * (-len(body) % 4)))
    return said


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedGateway]:
    site = Site(tmp_path_factory.mktemp("issuer"), trustme.CA())
    site.users("alice", "bob")
    (site.folder / "key.pem").write_bytes(SigningKey.generate().pem())
    (site.folder / "caller-token").write_text(CALLER)
    (site.folder / "another-token").write_text("not-that-token")
    port = free_port()
    sections: dict[str, Any] = {
        "listen": {"address": f"127.0.0.1:{port}", "workers": 2},
        "externalURL": f"https://localhost:{port}",
        "issuer": {"audiences": [AUDIENCE], "keys": {"files": ["key.pem"]}},
        "webhooks": {"revocations": True, "callers": {"tokenFile": "caller-token"}},
    }
    with site.serving(**sections) as served:
        yield served


@pytest.fixture
def desk(gateway: ServedGateway, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Desk:
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("XDG_STATE_HOME", str(home / "state"))
    login = gateway.login("alice")
    soon, later = (datetime.now(UTC) + timedelta(minutes=minutes) for minutes in (14, 600))
    grant = SignInGrant(Secret(login.token), soon, Secret(login.renewal_token), login.session, later, "alice")
    authority = (gateway.site.folder / "ca.pem").read_text()
    Sessions(GatewayAccount(gateway.url())).save(grant, store=FILE, authorities_pem=authority)
    return Desk(gateway.site, gateway, home, login)


class TestGetToken:
    def test_a_jwt_is_printed_and_kept_until_it_ends(self, desk: Desk) -> None:
        before = desk.gateway.metric("ostiary_gateway_issuer_jwts_total", audience=AUDIENCE)
        first = desk.jwt()
        assert claims(first)["username"] == "alice"
        assert desk.jwt() == first
        assert desk.jwt("--provider", "staff") == first
        assert desk.gateway.metric("ostiary_gateway_issuer_jwts_total", audience=AUDIENCE) == before + 1
        (kept,) = desk.files("jwt")
        assert kept.stat().st_mode & 0o777 == 0o600

    def test_the_gateways_own_token_is_another_file(self, desk: Desk) -> None:
        desk.jwt()
        done = desk.run("get-token", "--server", desk.gateway.url())
        assert json.loads(done.stdout)["status"]["token"] == desk.login.token

    def test_a_client_that_asks_again_gets_a_new_jwt(self, desk: Desk) -> None:
        """kubectl runs the plugin again when the API server has said 401."""
        info = json.dumps(
            {
                "apiVersion": "client.authentication.k8s.io/v1",
                "kind": "ExecCredential",
                "spec": {"interactive": False},
            }
        )
        first = desk.jwt()
        assert desk.jwt(KUBERNETES_EXEC_INFO=info) == first
        assert desk.jwt(KUBERNETES_EXEC_INFO=info) != first

    def test_signing_out_forgets_the_jwts_and_ends_them(self, desk: Desk) -> None:
        token = desk.jwt()
        assert desk.run("logout", "--server", desk.gateway.url()).returncode == 0
        assert desk.files("jwt") == []
        review = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SubjectAccessReview",
            "spec": {
                "user": "alice",
                "extra": {"authentication.kubernetes.io/credential-id": [f"JTI={claims(token)['jti']}"]},
                "resourceAttributes": {"verb": "get", "resource": "pods"},
            },
        }
        with desk.gateway.http(CALLER) as http:
            status = http.post("/webhooks/deny-revoked?timeout=30s", json=review).json()["status"]
        assert (status["allowed"], status["denied"]) == (False, True)

    def test_an_unknown_audience_is_told_without_a_token_in_it(self, desk: Desk) -> None:
        done = desk.run("get-token", "--server", desk.gateway.url(), "--jwt-for", "https://other.example")
        assert (done.returncode, done.stdout) == (1, "")
        assert "it issues no JWTs for this audience" in done.stderr
        assert desk.login.token not in done.stderr

    def test_the_kubeconfig_of_a_cluster_that_trusts_the_gateway(self, desk: Desk) -> None:
        words = ["--server", desk.gateway.url(), "--api-server", "https://prod.example:6443", "--ca", "ca.pem"]
        done = desk.run("kubeconfig", *words, "--jwt-for", AUDIENCE, "--name", "prod")
        assert done.returncode == 0, done.stderr
        made = yaml.safe_load(done.stdout)
        assert made["clusters"][0]["cluster"]["server"] == "https://prod.example:6443"
        args = made["users"][0]["user"]["exec"]["args"]
        assert args == ["get-token", "--server", desk.gateway.url(), "--jwt-for", AUDIENCE]
        alone = desk.run("kubeconfig", "--server", desk.gateway.url(), "--jwt-for", AUDIENCE)
        assert (alone.returncode, "need each other" in alone.stderr) == (2, True)


VERIFY = """
import { createRemoteJWKSet, jwtVerify } from "jose";
const [issuer, audience, token] = process.argv.slice(1);
const found = await (await fetch(`${issuer}/.well-known/openid-configuration`)).json();
if (found.issuer !== issuer) throw new Error("another issuer");
const keys = createRemoteJWKSet(new URL(found.jwks_uri));
const { payload } = await jwtVerify(token, keys, { issuer, audience, algorithms: ["ES256"] });
console.log(payload.username);
"""


def test_a_verifier_of_npm_needs_nothing_but_the_issuers_url(
    desk: Desk,
) -> None:
    folder = installed()
    authority = str(desk.site.folder / "ca.pem")

    def verified(audience: str, token: str) -> Done:
        # The JWT is one of a test: on a real machine it would not stand on a command line.
        command = ["node", "--input-type=module", "-e", VERIFY, desk.gateway.url(), audience, token]
        environment = {**os.environ, "NODE_EXTRA_CA_CERTS": authority}
        return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=SECONDS)

    token = desk.jwt()
    assert verified(AUDIENCE, token).stdout == "alice\n"
    assert 'unexpected "aud" claim value' in verified("https://other.example", token).stderr
    head, body, _ = token.split(".")
    assert "JWSSignatureVerificationFailed" in verified(AUDIENCE, f"{head}.{body}.{'A' * 86}").stderr


# --- the file of an API server ---


@contextmanager
def following(desk: Desk, path: Path) -> Iterator[subprocess.Popen[str]]:
    words = ["--server", desk.gateway.url(), "--token-file", "caller-token", "--ca", "ca.pem", "--follow", str(path)]
    command = [sys.executable, "-m", "ostiary_gateway", "issuer", "kubernetes", *words]
    process = subprocess.Popen(command, cwd=desk.site.folder, stderr=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.terminate()
        process.wait(SECONDS)
        assert process.stderr is not None
        process.stderr.close()


def test_the_file_refuses_what_was_revoked_as_soon_as_it_is(desk: Desk, tmp_path: Path) -> None:
    path = tmp_path / "authentication.yaml"
    with following(desk, path) as process:
        until(path.exists, "the file is written")
        jwt = yaml.safe_load(path.read_text())["jwt"][0]
        assert jwt["issuer"]["url"] == desk.gateway.url()
        assert jwt["issuer"]["certificateAuthority"] == (desk.site.folder / "ca.pem").read_text()
        token = desk.jwt()
        with desk.gateway.http(desk.login.token) as http:
            assert http.post("/auth/logout").status_code == 204
        until(lambda: claims(token)["sid"] in path.read_text(), "the revoked session is in the file")
        assert process.poll() is None
    assert list(tmp_path.glob("authentication.yaml.*")) == []


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--token-file", "another-token"], "the gateway answered 401"),
        (["--token-file", "none"], "the token cannot be read"),
        (["--token-file", "caller-token", "--audience", "https://other.example"], "no JWTs for the audience"),
    ],
)
def test_a_mistake_is_told_at_once_and_no_file_is_written(
    desk: Desk, tmp_path: Path, words: list[str], told: str
) -> None:
    path = tmp_path / "authentication.yaml"
    common = ["--server", desk.gateway.url(), "--ca", "ca.pem", "--follow", str(path)]
    done = desk.run("issuer", "kubernetes", *common, *words)
    assert done.returncode in (1, 2)
    assert told in done.stderr
    assert not path.exists()
    assert CALLER not in done.stderr


def test_file_names_of_other_accounts_are_not_those_of_jwts(desk: Desk) -> None:
    desk.jwt()
    (kept,) = desk.files("jwt")
    name = file_name(desk.gateway.url(), "default")
    assert name is not None
    assert kept.name.startswith(f"{name}+")
    assert "+" not in name.partition("+")[2]


# --- what must stay secret ---


def test_no_secret_of_the_issuer_is_in_any_log_file_or_command_line(tmp_path: Path) -> None:
    """The sealing secret, the private key, JWTs, and the tokens that they were exchanged for; good paths and bad."""
    site = Site(tmp_path / "site", trustme.CA())
    site.users("alice")
    sealing = "c4n4ry-of-the-sealing-secret-" + "0" * 20
    (site.folder / "issuer-secret").write_text(sealing)
    (site.folder / "caller-token").write_text(CALLER)
    sections: dict[str, Any] = {
        "issuer": {"url": "https://issuer.example", "audiences": [AUDIENCE], "keys": {"secretFile": "issuer-secret"}},
        "webhooks": {"revocations": True, "callers": {"tokenFile": "caller-token"}},
        "log": {"level": "debug", "format": "json"},
    }
    said: list[str] = []
    with site.serving(**sections) as gateway:
        login = gateway.login("alice")
        form = {**EXCHANGE, "subject_token": login.token, "audience": AUDIENCE}
        with gateway.http() as http:
            token = http.post("/auth/token", data=form).json()["access_token"]
            for changes in (
                {"audience": "https://other.example"},
                {"subject_token": token},
                {"subject_token": login.renewal_token},
                {"requested_token_type": "unknown"},
            ):
                refused = http.post("/auth/token", data={**form, **changes})
                assert refused.status_code == 400
                said.append(refused.text)
            said.append(http.get("/.well-known/jwks.json").text)
        with gateway.http(CALLER) as http:
            said.append(http.get("/webhooks/revoked-credentials").text)
            said.append(http.post("/webhooks/deny-revoked", content=token).text)
        for words in (["keys"], ["rotate"], ["keys", "-o", "json"], ["kubernetes"]):
            command = [sys.executable, "-m", "ostiary_gateway", "issuer", *words]
            done = subprocess.run(command, cwd=site.folder, capture_output=True, text=True, timeout=SECONDS)
            assert done.returncode == 0, done.stderr
            said += [done.stdout, done.stderr]
        # The secret is spoiled while the gateway runs, and then gone.
        (site.folder / "issuer-secret").write_text("too-short")
        until(lambda: _is_told(gateway), "the unusable secret is told")
        (site.folder / "issuer-secret").write_text(sealing)
        said += [Path(f"/proc/{pid}/cmdline").read_text() for pid in (gateway.pid, *gateway.workers())]
        said.append(gateway.probe("/metrics").text + gateway.probe("/readyz").text)
    said.append(gateway.stderr)
    kept = [path for path in site.folder.rglob("*") if path.is_file() and path.name != "issuer-secret"]
    contents = [path.read_bytes() for path in kept]
    assert any(path.name == "tokens.db" for path in kept)
    for secret in (sealing, token, token.rpartition(".")[2], login.token, login.renewal_token, "PRIVATE KEY"):
        assert not [text for text in said if secret in text], secret[:12]
        leaking = [path.name for path, data in zip(kept, contents, strict=True) if secret.encode() in data]
        # The listener's own key and certificate are files of the operator.
        assert [name for name in leaking if name != "server.key"] == [], secret[:12]


def _is_told(gateway: ServedGateway) -> bool:
    """Whoever fetches the keys makes the worker read them again."""
    gateway.get("/.well-known/jwks.json")
    return "the signing keys of the issuer cannot be read or rotated" in gateway.stderr
