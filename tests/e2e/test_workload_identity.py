"""Programs without a stored secret deploy through a gateway with curl alone, as each platform's page has it.

The jobs of GitHub, GitLab and any other issuer get their tokens from the certified ``oidc-provider``, pods from the
cluster, and SPIFFE's workloads from the test. What a page shows runs as it stands, but for the addresses. S72.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import trustme

from ostiary.core.clock import SYSTEM_CLOCK
from tests.support.cluster import Cluster, Record
from tests.support.gateway import ServedGateway, Site
from tests.support.http_server import HttpServer, Request, Response
from tests.support.issuer import ec_key, public
from tests.support.oidc_provider import OidcProvider, installed
from tests.support.workload_pages import WorkloadPage
from tests.support.workloads import GATEWAY, GITHUB, GITLAB, JWT_SVID, platform_token

CONFIG_MAPS = "/api/v1/namespaces/shop/configmaps"
SECRET = "secret-of-a-runner"
MACHINE = {"sub": "robot-7", "environment": "production", "team": "shop"}

pytestmark = pytest.mark.needs("kubectl", "curl")


@dataclass
class World:
    site: Site
    cluster: Cluster

    @contextmanager
    def serving(self, page: WorkloadPage, **changed: Any) -> Iterator[ServedGateway]:
        """The gateway of *page*, with the addresses in *changed*."""
        self.site.policy(page.policy)
        (upstream,) = page.gateway["upstreams"]
        sections = {
            **page.gateway,
            "identity": [{**page.identity, **changed}],
            "listen": {"workers": 2},
            "upstreams": [self.site.impersonating(self.cluster, name=upstream["name"])],
        }
        with self.site.serving(**sections) as gateway:
            yield gateway

    def run(
        self, page: WorkloadPage, gateway: ServedGateway, files: Mapping[str, str] | None = None, **environment: str
    ) -> subprocess.CompletedProcess[str]:
        """Run the script of *page* in an empty folder that is its HOME; *files* are in it."""
        folder = self.site.folder / f"job-{os.urandom(4).hex()}"
        folder.mkdir()
        for name, text in (files or {}).items():
            (folder / name).write_text(text)
        script = page.curl_script.replace(f"{GATEWAY}/auth/token", f"{gateway.url()}/auth/token")
        script = script.replace(f'server: "{GATEWAY}"', f'server: "{gateway.url()}"')
        script = script.replace("/var/run/secrets/ostiary/token", "proof.jwt")
        (folder / "deploy.sh").write_text(script)
        authority = str(self.site.folder / "ca.pem")
        clean = {
            "PATH": os.environ["PATH"],
            "HOME": str(folder),
            "SSL_CERT_FILE": authority,
            "CURL_CA_BUNDLE": authority,
        }
        return subprocess.run(
            ["sh", "deploy.sh"],
            cwd=folder,
            env={**clean, **environment},
            capture_output=True,
            text=True,
            timeout=100,
        )

    def created(self) -> Record:
        return self.cluster.wait_for(lambda record: record.method == "POST" and record.path == CONFIG_MAPS)

    def nothing_of(self, token: str, gateway: ServedGateway) -> None:
        """No part of *token* is in a log, an audit record, or the store."""
        places = [gateway.stderr, self.site.audit_log.read_text()]
        places += [path.read_bytes().decode("latin-1") for path in self.site.folder.glob("tokens.db*")]
        for part in token.split("."):
            assert not [place for place in places if part in place]


@pytest.fixture
def world(tmp_path: Path, ca: trustme.CA) -> Iterator[World]:
    with Cluster(ca) as cluster:
        cluster.add_namespace("shop")
        yield World(Site(tmp_path / "site", ca), cluster)


@pytest.fixture(scope="module")
def issuer() -> Iterator[OidcProvider]:
    job = {**GITHUB, "environment": "production"}
    accounts = {"github": job, "gitlab": GITLAB, "machine": MACHINE, "fork": {**job, "repository": "evil/shop"}}
    # The id of a token is its issuer's to give.
    claims = {name: {key: value for key, value in each.items() if key != "jti"} for name, each in accounts.items()}
    clients = [
        {
            "client_id": name,
            "client_secret": SECRET,
            "redirect_uris": [],
            "response_types": [],
            "grant_types": ["client_credentials"],
        }
        for name in claims
    ]
    with OidcProvider.running(installed(), clients=clients, accounts=claims) as running:
        yield running


@contextmanager
def github_runner(token: Callable[[str], str]) -> Iterator[str]:
    """What a job of GitHub Actions asks for its token, at the address that this gives."""

    def respond(request: Request) -> Response:
        if request.bearer != SECRET:
            return Response(401)
        (audience,) = request.query.get_list("audience")
        return Response(200, {"count": 1, "value": token(audience)})

    with HttpServer(respond).running() as server:
        yield f"{server.url}/idtoken?api-version=2.0"


@pytest.mark.needs("node", "npm")
def test_a_github_job_deploys_and_a_fork_does_not(world: World, issuer: OidcProvider) -> None:
    page, given = WorkloadPage("sign-in-from-github-actions.md"), list[str]()

    def token_of(client: str) -> Callable[[str], str]:
        def token(audience: str) -> str:
            given.append(issuer.job_token(client, SECRET, audience))
            return given[-1]

        return token

    with world.serving(page, issuer=issuer.url) as gateway:
        for client in ("fork", "github"):
            with github_runner(token_of(client)) as address:
                job = {"ACTIONS_ID_TOKEN_REQUEST_URL": address, "ACTIONS_ID_TOKEN_REQUEST_TOKEN": SECRET}
                done = world.run(page, gateway, None, **job)
                assert (done.returncode == 0) is (client == "github"), done.stderr
        record = world.created()
        assert record.value("Impersonate-User") == "github:acme/shop"
        # Accepted once, by every worker: the first use was the job's.
        for _ in range(8):
            again = gateway.http().post("/auth/token", data=exchange_form(given[-1]))
            assert (again.status_code, again.json()["error"]) == (400, "invalid_request")
        gateway.line("no rule matches the claims of its token")
        for token in given:
            world.nothing_of(token, gateway)


@pytest.mark.needs("node", "npm")
def test_a_gitlab_job_of_a_self_hosted_instance_deploys(world: World, issuer: OidcProvider) -> None:
    page = WorkloadPage("sign-in-from-gitlab-ci.md")
    with world.serving(page, issuer=issuer.url) as gateway:
        token = issuer.job_token("gitlab", SECRET, GATEWAY)
        done = world.run(page, gateway, OSTIARY_ID_TOKEN=token)
        assert done.returncode == 0, done.stderr
        assert world.created().value("Impersonate-User") == "gitlab:acme/platform/shop"
        wrong = world.run(
            page, gateway, OSTIARY_ID_TOKEN=issuer.job_token("gitlab", SECRET, "https://another.example.com")
        )
        assert wrong.returncode != 0
        world.nothing_of(token, gateway)


@pytest.mark.slow
@pytest.mark.needs("node", "npm")
def test_a_machine_of_any_issuer_deploys_and_an_issuer_that_is_down_is_no_refusal(
    world: World,
    issuer: OidcProvider,
) -> None:
    page = WorkloadPage("sign-in-from-any-issuer.md")
    with world.serving(page, issuer=issuer.url) as gateway:
        done = world.run(page, gateway, {"proof.jwt": issuer.job_token("machine", SECRET, GATEWAY)})
        assert done.returncode == 0, done.stderr
        record = world.created()
        assert record.value("Impersonate-User") == "robot-7"
        assert record.values("Impersonate-Group") == ["deployers"], "the policy mentions no other"
    token = issuer.job_token("machine", SECRET, GATEWAY)
    with world.serving(page, issuer="http://127.0.0.1:9", keysURL="http://127.0.0.1:9/keys") as gateway:
        answer = gateway.http().post("/auth/token", data=exchange_form(token))
        assert answer.json()["error"] == "invalid_request", "another issuer's"
    with world.serving(page, issuer=issuer.url, keysURL="http://127.0.0.1:9/keys") as gateway:
        answer = gateway.http().post("/auth/token", data=exchange_form(token))
        assert (answer.status_code, answer.json()["error"]) == (503, "temporarily_unavailable")
        world.nothing_of(token, gateway)


@pytest.mark.parametrize("review", [False, True], ids=["keys", "TokenReview"])
def test_a_pod_deploys_as_its_service_account(world: World, review: bool) -> None:
    page, cluster = WorkloadPage("sign-in-from-pods.md"), world.cluster
    cluster.add_pod("shop", "deployer")
    files = {"ca": "ca.pem", "tokenFile": "reader", "server": cluster.url, "tokenReview": review}
    (world.site.folder / "reader").write_text(cluster.add_token("system:serviceaccount:gateway:ostiary"))
    with world.serving(page, **files) as gateway:
        token = cluster.request_token("shop", "deployer", audiences=[GATEWAY], pod="deployer")
        done = world.run(page, gateway, {"proof.jwt": token})
        assert done.returncode == 0, done.stderr
        record = world.created()
        assert record.value("Impersonate-User") == "system:serviceaccount:shop:deployer"
        assert record.values("Impersonate-Group") == [], "the API server adds them itself"
        assert record.value("Impersonate-Extra-authentication.kubernetes.io%2fpod-name") == "deployer"
        for_the_api_server = cluster.request_token("shop", "deployer")
        assert world.run(page, gateway, {"proof.jwt": for_the_api_server}).returncode != 0
        world.nothing_of(token, gateway)


def test_a_spiffe_workload_deploys(world: World) -> None:
    page, key = WorkloadPage("sign-in-with-spiffe.md"), ec_key("svid")
    (world.site.folder / "bundle.json").write_text(json.dumps({"keys": [public(key, use="jwt-svid")]}))
    with world.serving(page) as gateway:
        token = platform_token(SYSTEM_CLOCK, key, JWT_SVID)
        done = world.run(page, gateway, {"svid.jwt": token})
        assert done.returncode == 0, done.stderr
        assert world.created().value("Impersonate-User") == JWT_SVID["sub"]
        other = platform_token(SYSTEM_CLOCK, key, {"sub": "spiffe://example.org/ns/other/sa/deployer"})
        assert world.run(page, gateway, {"svid.jwt": other}).returncode != 0
        world.nothing_of(token, gateway)


def exchange_form(token: str) -> dict[str, str]:
    return {
        "grant_type": "urn:ietf:params:oauth:grant-type:token-exchange",
        "subject_token_type": "urn:ietf:params:oauth:token-type:jwt",
        "subject_token": token,
    }
