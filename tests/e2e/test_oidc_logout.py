"""Out at the issuer, out at the gateway: by its logout at once, without one at the next renewal.

The issuer is the certified ``oidc-provider`` of npm, which sends the logouts itself. kubectl, the gateway and ostiary
are processes of their own, where time is not what is tried.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import trustme

from ostiary_gateway.testing import FakeClock
from tests.support.cluster import Cluster
from tests.support.gateway import SECONDS, Gateway, InProcessGateway, ServedGateway, Site, role
from tests.support.kubectl import find_kubectl, newest_exec_version
from tests.support.oidc_provider import OidcProvider, Person, installed
from tests.support.opened_browser import OpenedBrowser
from tests.support.ports import free_port
from tests.support.terminal import AtTerminal

pytestmark = [pytest.mark.needs("node", "npm"), pytest.mark.timeout(90)]

BIN = Path(sys.executable).parent
PODS = "/api/v1/namespaces/team/pods"
SECRET = "client-secret-of-the-gateway"
ALICE = {"email": "alice@example.com", "email_verified": True, "groups": ["developers"]}
LIFETIME = 15 * 60


class Office:
    """A gateway whose address is known before it starts, because the issuer must know it."""

    def __init__(self, folder: Path, ca: trustme.CA, issuer_folder: Path) -> None:
        self.site = Site(folder, ca)
        self.site.policy(role("team", "pods", Group="developers"))
        (folder / "oidc-secret").write_text(SECRET)
        self._issuer_folder = issuer_folder
        self._port = free_port()
        self.url = f"https://localhost:{self._port}"

    @contextmanager
    def issuer(self, **client: Any) -> Iterator[OidcProvider]:
        """One that gives refresh tokens, and with *client* also tells of logouts."""
        registered = {
            "client_id": "gateway",
            "client_secret": SECRET,
            "redirect_uris": [f"{self.url}/auth/acme/provider"],
            "post_logout_redirect_uris": [f"{self.url}/auth/acme/logout"],
            "grant_types": ["authorization_code", "refresh_token"],
            **client,
        }
        ca = self.site.folder / "ca.pem"
        with OidcProvider.running(
            self._issuer_folder, clients=[registered], accounts={"alice": ALICE}, ca=ca
        ) as issuer:
            yield issuer

    def sections(self, issuer: OidcProvider, **settings: Any) -> dict[str, Any]:
        identity = {
            "name": "acme",
            "type": "oidc",
            "issuer": issuer.url,
            "clientID": "gateway",
            "clientSecretFile": "oidc-secret",
            "scopes": ["email", "groups", "offline_access"],
            "prompt": "consent",
            "claims": {"username": "email", "groups": "groups"},
            **settings,
        }
        return {
            "listen": {"address": f"127.0.0.1:{self._port}"},
            "externalURL": self.url,
            "identity": [identity],
            "groups": [{"name": "teams", "provider": "acme"}],
        }

    @property
    def logout(self) -> dict[str, Any]:
        """What a client registers at the issuer for back-channel logout."""
        return {
            "backchannel_logout_uri": f"{self.url}/auth/acme/logout",
            "backchannel_logout_session_required": True,
        }


@pytest.fixture
def office(
    tmp_path: Path,
    ca: trustme.CA,
) -> Office:
    return Office(tmp_path / "gateway", ca, installed())


class Machine:
    """A home, kubectl, and ostiary that is signed in through the person's browser."""

    def __init__(self, home: Path, gateway: ServedGateway) -> None:
        home.mkdir()
        self.home, self.gateway = home, gateway
        self.environment = {"HOME": str(home), "PATH": f"{BIN}:/usr/bin:/bin", "TERM": "dumb"}

    def sign_in(self, person: Person) -> None:
        server = ["--server", self.gateway.url(), "--ca", str(self.gateway.site.folder / "ca.pem")]
        command = [str(BIN / "ostiary"), "kubeconfig", *server, "--namespace", "team", "--merge"]
        subprocess.run(command, env=self.environment, check=True, capture_output=True)
        config = self.home / ".kube" / "config"
        config.write_text(config.read_text().replace("k8s.io/v1\n", f"k8s.io/{newest_exec_version()}\n"))

        def act(address: str) -> None:
            assert person.visit(address).status_code == 200

        with OpenedBrowser(self.home, act) as browser:
            self.environment["BROWSER"] = str(browser.path)
            code, _ = AtTerminal([str(BIN / "ostiary"), "login", *server], self.environment).end()
            assert code == 0

    def forget_access_token(self) -> None:
        """As though it had expired: what is left is the session, and what renews it."""
        for path in self.home.glob(".local/state/**/*.token"):
            path.unlink()

    @contextmanager
    def kubectl(self, *words: str) -> Iterator[subprocess.Popen[str]]:
        with subprocess.Popen(
            [str(find_kubectl()), *words],
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        ) as process:
            try:
                yield process
            finally:
                process.kill()

    def get_pods(self) -> tuple[int, str, str]:
        with self.kubectl("get", "pods", "-o", "name") as process:
            out, error = process.communicate(timeout=SECONDS)
            return process.returncode, out, error


@pytest.mark.needs("kubectl")
def test_a_logout_at_the_issuer_cuts_the_watch_of_kubectl(
    office: Office, tmp_path: Path, ca: trustme.CA, record_property: Callable[[str, object], None]
) -> None:
    """S30, S64: kubectl by OpenID Connect, renewed with a refresh token; then the person signs out at the issuer."""
    with Cluster(ca) as cluster:
        cluster.add_namespace("team")
        cluster.add_pod("team", "web")
        upstreams = [office.site.impersonating(cluster)]
        with (
            office.issuer(**office.logout) as issuer,
            office.site.serving(**office.sections(issuer), upstreams=upstreams) as gateway,
        ):
            person = Person(issuer, "alice", gateway.trust)
            machine = Machine(tmp_path / "home", gateway)
            machine.sign_in(person)
            assert machine.get_pods() == (0, "pod/web\n", "")
            machine.forget_access_token()
            assert machine.get_pods() == (0, "pod/web\n", "")
            assert "user alice@example.com" in gateway.line("login renewed"), "the issuer was asked, by refresh token"
            with machine.kubectl("get", "pods", "--watch", "-o", "name") as watch:
                assert watch.stdout is not None
                assert watch.stdout.readline() == "pod/web\n"
                cluster.wait_for(lambda record: record.flag("watch"))
                started = time.monotonic()
                person.sign_out_at_the_issuer()
                watch.communicate(timeout=SECONDS)
                # From the click at the issuer until kubectl has ended.
                record_property("seconds until kubectl ended", round(time.monotonic() - started, 3))
            ended = gateway.line("logout by the identity system")
            assert "provider acme, user alice@example.com" in ended
            assert "2 sessions ended" in ended, "the command line's, and the browser's"
            code, out, error = machine.get_pods()
            assert (code, out) == (1, "")
            assert "sign in first" in error
            assert "/auth" in str(person.visit(f"{gateway.url()}/auth/sessions").url)
    events = [event for event in office.site.events() if event["requestURI"] == "/auth/acme/logout"]
    assert [event["user"]["username"] for event in events] == ["alice@example.com"]
    assert events[0]["annotations"]["ostiary.dev/login"] == "ended"


# --- at the next renewal ---


def in_process(office: Office, issuer: OidcProvider, clock: FakeClock) -> AbstractContextManager[InProcessGateway]:
    return office.site.in_process(clock=clock, **office.sections(issuer, clockSkew="5m"))


def sign_in_as_program(gateway: Gateway, person: Person) -> dict[str, Any]:
    """As a program that a person helps in the browser; both share the cookies."""
    person.browser.headers["Accept"] = "application/json"
    answer = person.visit(f"{gateway.url()}/auth")
    assert answer.status_code == 200, answer.text
    pair: dict[str, Any] = json.loads(answer.text)
    return pair


def renew(gateway: Gateway, pair: dict[str, Any]) -> Any:
    with gateway.http() as http:
        return http.post("/auth/renew", data={"renewal_token": pair["renewal_token"]})


@pytest.mark.parametrize("how", ["the account is disabled", "the refresh token is revoked"])
def test_who_is_out_at_the_issuer_is_out_at_the_next_renewal(office: Office, how: str) -> None:
    """S64. Nobody tells us: fifteen minutes at most, which is how long an access token lives."""
    clock = FakeClock(datetime.now(UTC))
    with office.issuer() as issuer, in_process(office, issuer, clock) as gateway:
        person = Person(issuer, "alice", gateway.trust)
        pair = sign_in_as_program(gateway, person)
        clock.advance(LIFETIME / 2)
        pair = renew(gateway, pair).json()
        if how == "the account is disabled":
            issuer.change_accounts({"alice": {**ALICE, "disabled": True}})
        else:
            issuer.revoke_refresh_tokens()
        clock.advance(LIFETIME - 1)
        assert gateway.get("/auth/whoami", pair["token"]).status_code == 200
        clock.advance(1)
        assert gateway.get("/auth/whoami", pair["token"]).status_code == 401
        refused = renew(gateway, pair)
        assert refused.status_code == 401
        assert renew(gateway, pair).status_code == 401, "the session has ended"


# --- signing out here ---


def test_signing_out_here_ends_the_session_at_the_issuer_and_comes_back(office: Office) -> None:
    with (
        office.issuer() as issuer,
        office.site.serving(**office.sections(issuer, endSession=True)) as gateway,
    ):
        person = Person(issuer, "alice", gateway.trust)
        home = person.visit(f"{gateway.url()}/auth")
        assert "alice@example.com" in home.text
        form_token = home.text.split('name="form_token" value="')[1].split('"')[0]
        headers = {"Origin": gateway.url(), "Sec-Fetch-Site": "same-origin"}
        left = person.browser.post(f"{gateway.url()}/auth/logout", data={"form_token": form_token}, headers=headers)
        assert left.status_code == 200
        address = left.text.split('http-equiv="refresh" content="0; url=')[1].split('"')[0].replace("&amp;", "&")
        assert address.startswith(f"{issuer.url}/session/end?id_token_hint=")
        back = person.visit(address)
        assert urlsplit(str(back.url)).path == "/auth/acme/logout"
        assert "You are signed out" in back.text
        again = person.browser.get(f"{gateway.url()}/auth", follow_redirects=True)
        assert 'name="login"' in again.text, "the issuer asks for the password again"
