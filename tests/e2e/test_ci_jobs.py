"""A job or pod with no stored secret works through a real gateway, as the how-to pages have it.

The files of ``sign-in-from-github-actions.md``, ``-gitlab-ci.md``, ``-pods.md``, ``-any-issuer.md`` and
``sign-in-with-spiffe.md`` are read from the pages: the gateway is configured with their identity providers and
policies, the commands of their jobs are run as they stand there, in an empty home, and the log is the one shown there.
Only addresses are replaced: those of the issuers by some on loopback, and the gateway's own.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import trustme
import yaml

from ostiary.cli import cached_workload_token
from ostiary.cli.login.platforms import sources as kubernetes
from ostiary.cli.login.platforms.credential import WorkloadTurn
from ostiary.cli.login.platforms.proof import PlatformChoice
from ostiary.cli.login.platforms.sources import find_proof
from ostiary.client.api_requests import ApiRequests
from ostiary.client.connection import connect
from ostiary.core.clock import SYSTEM_CLOCK
from ostiary.errors import CredentialError
from ostiary.wire.service_account import decode_token_request, encode_token_request, token_path
from ostiary_gateway.testing import FakeClock
from tests.support.cluster import Cluster
from tests.support.gateway import ServedGateway, Site, role
from tests.support.issuer import Issuer, public
from tests.support.kubectl import find_kubectl, newest_exec_version
from tests.support.platform_tokens import GitHubActions
from tests.support.ports import free_ports
from tests.support.spiffe_agent import SpiffeAgent
from tests.support.workload_pages import WorkloadPage
from tests.support.workloads import GITHUB, GITLAB, JWT_SVID, SERVICE_ACCOUNT, platform_token

pytestmark = pytest.mark.needs("kubectl")

GITHUB_PAGE, GITLAB_PAGE = "sign-in-from-github-actions.md", "sign-in-from-gitlab-ci.md"
POD_PAGE, FILE_PAGE, SPIFFE_PAGE = "sign-in-from-pods.md", "sign-in-from-any-issuer.md", "sign-in-with-spiffe.md"
SECONDS = 100
MACHINE = {"sub": "robot-7", "environment": "production", "team": "shop"}
DEPLOYMENT = {
    "apiVersion": "apps/v1",
    "kind": "Deployment",
    "metadata": {"name": "shop"},
    "spec": {
        "selector": {"matchLabels": {"app": "shop"}},
        "template": {
            "metadata": {"labels": {"app": "shop"}},
            "spec": {"containers": [{"name": "main", "image": "registry.example.com/shop:1"}]},
        },
    },
}
Done = subprocess.CompletedProcess[str]


@dataclass
class World:
    """A cluster, a gateway before it, and the platforms that it trusts."""

    folder: Path
    cluster: Cluster
    gateway: ServedGateway
    github: Issuer
    gitlab: Issuer

    @property
    def server(self) -> str:
        return self.gateway.url()

    def environment(self, home: Path) -> dict[str, str]:
        """All that a job has: nothing of ours but the programs and the authority of the gateway."""
        programs = self.folder / "programs"
        if not programs.exists():
            programs.mkdir()
            (programs / "ostiary").symlink_to(Path(sys.executable).with_name("ostiary"))
            (programs / "kubectl").write_text(_KUBECTL.format(kubectl=find_kubectl(), version=newest_exec_version()))
            (programs / "kubectl").chmod(0o755)
        return {
            "HOME": str(home),
            "PATH": f"{programs}:{Path(sys.executable).parent}:{os.environ['PATH']}",
            "SSL_CERT_FILE": str(self.gateway.site.folder / "ca.pem"),
            "CI": "true",
        }


# Kubernetes' own before 1.22 knows only v1beta1 of the exec API.
_KUBECTL = """#!/bin/sh
sed -i 's,authentication.k8s.io/v1$,authentication.k8s.io/{version},' "$KUBECONFIG"
exec {kubectl} --cache-dir "${{TMPDIR:-/tmp}}/kubectl-cache-$$" "$@"
"""


@pytest.fixture(scope="module")
def world(ca: trustme.CA, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("world")
    site = Site(folder / "gateway", ca)
    (port,) = free_ports(1)
    server = f"https://localhost:{port}"
    github, gitlab = Issuer(ca, SYSTEM_CLOCK), Issuer(ca, SYSTEM_CLOCK)
    pages = {name: WorkloadPage(name, server) for name in (GITHUB_PAGE, GITLAB_PAGE, POD_PAGE)}
    site.policy(*(policy_named(name, page) for name, page in pages.items()))
    with Cluster(ca) as cluster, github.running(), gitlab.running():
        cluster.add_namespace("shop")
        cluster.add("serviceaccounts", "shop", {"metadata": {"name": "deployer"}})
        pod = {"metadata": {"name": "deployer"}, "spec": {"serviceAccountName": "deployer", "containers": []}}
        cluster.add("pods", "shop", pod)
        upstream = {**site.impersonating(cluster), "name": pages[POD_PAGE].identity["cluster"]}
        identity = [
            {**pages[GITHUB_PAGE].identity, "issuer": github.url, "ca": "ca.pem"},
            {**pages[GITLAB_PAGE].identity, "issuer": gitlab.url, "ca": "ca.pem"},
            {**pages[POD_PAGE].identity, "server": cluster.url, "ca": "ca.pem", "tokenFile": "token", "prefix": ""},
        ]
        listen = {"address": f"127.0.0.1:{port}"}
        sections: dict[str, Any] = {"externalURL": server, "identity": identity, "upstreams": [upstream]}
        with site.serving(**sections, listen=listen) as gateway:
            yield World(folder, cluster, gateway, github, gitlab)


def policy_named(name: str, page: WorkloadPage) -> list[Any]:
    """The policy of *page*; with a name of its own, since all pages use the same one."""
    return [{**each, "metadata": {**each["metadata"], "name": name}} for each in page.policy]


# --- jobs ---


@dataclass
class Job:
    """The commands of a job, in an empty home and a checkout with one manifest."""

    world: World
    folder: Path
    variables: dict[str, str]

    def __post_init__(self) -> None:
        for name in ("home", "temp", "checkout/manifests"):
            (self.folder / name).mkdir(parents=True)
        (self.folder / "checkout/manifests/shop.yaml").write_text(yaml.safe_dump(DEPLOYMENT))

    def run(self, script: str) -> Done:
        variables = {**self.world.environment(self.folder / "home"), "TMPDIR": str(self.folder / "temp")}
        return subprocess.run(
            ["bash", "--norc", "-e", "-c", script],
            cwd=self.folder / "checkout",
            env={**variables, **self.variables},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=SECONDS,
        )


def github_claims(**more: Any) -> dict[str, Any]:
    return {**GITHUB, "environment": "production", "sub": "repo:acme/shop:environment:production", **more}


def github_script(server: str) -> tuple[str, dict[str, str]]:
    """The steps of the page's workflow that run commands, and the job's variables."""
    (workflow,) = WorkloadPage(GITHUB_PAGE, server).documents(".github/workflows/deploy.yaml")
    assert workflow["permissions"]["id-token"] == "write"
    (job,) = workflow["jobs"].values()
    commands = [step["run"] for step in job["steps"] if "run" in step and not step["run"].startswith("pipx install")]
    return "\n".join(commands), dict(job["env"])


@pytest.fixture
def github_job(world: World, tmp_path: Path) -> Iterator[tuple[Job, GitHubActions, dict[str, Any]]]:
    claims = github_claims()

    def sign(audience: str) -> str:
        return platform_token(
            SYSTEM_CLOCK, world.github.key, claims, issuer=world.github.url, audience=audience, jti=os.urandom(8).hex()
        )

    with GitHubActions(sign).running() as actions:
        _, variables = github_script(world.server)
        runner = {"RUNNER_TEMP": str(tmp_path / "temp")}
        yield Job(world, tmp_path, {**actions.environment, **variables, **runner}), actions, claims


def test_a_github_job_with_no_stored_secret_deploys(
    world: World, github_job: tuple[Job, GitHubActions, dict[str, Any]]
) -> None:
    job, actions, _ = github_job
    script, _ = github_script(world.server)
    done = job.run(script)
    assert done.returncode == 0, done.stderr
    assert WorkloadPage(GITHUB_PAGE, world.server).is_log(done.stderr + done.stdout), done.stderr + done.stdout
    assert world.cluster.get("deployments", "shop", "shop")["spec"] is not None
    record = next(each for each in world.cluster.requests if each.method == "POST" and "deployments" in each.path)
    assert record.user is not None
    assert record.user.username == "github:acme/shop"
    assert actions.audiences == [world.server], "one exchange for all that kubectl did"
    world.cluster.remove("deployments", "shop", "shop")


def test_a_job_of_another_branch_is_refused_and_told_what_to_compare(
    world: World, github_job: tuple[Job, GitHubActions, dict[str, Any]]
) -> None:
    job, _, claims = github_job
    claims["ref"] = "refs/heads/feature"
    done = job.run("ostiary login --from github")
    assert done.returncode == 1
    assert "the gateway refused the platform's token" in done.stderr
    assert "compare issuer, audience and subject" in done.stderr


def test_a_job_cannot_do_more_than_its_scope(
    world: World, github_job: tuple[Job, GitHubActions, dict[str, Any]]
) -> None:
    job, _, _ = github_job
    context = (
        'ostiary kubeconfig --from github --namespace shop --can "get,list configmaps -n shop" --write $KUBECONFIG'
    )
    job.variables["KUBECONFIG"] = str(job.folder / "temp" / "kubeconfig")
    done = job.run(f"{context}\nkubectl get configmaps\nkubectl delete configmap more")
    assert done.returncode == 1
    assert "No resources found" in done.stderr
    assert "forbidden" in done.stderr.lower()


def test_a_gitlab_job_with_no_stored_secret_deploys(world: World, tmp_path: Path) -> None:
    page = WorkloadPage(GITLAB_PAGE, world.server)
    (pipeline,) = page.documents(".gitlab-ci.yml")
    (written,) = pipeline.values()
    (variable, settings), *_ = written["id_tokens"].items()
    token = platform_token(SYSTEM_CLOCK, world.gitlab.key, GITLAB, issuer=world.gitlab.url, audience=settings["aud"])
    job = Job(world, tmp_path, {"GITLAB_CI": "true", variable: token, **written["variables"]})
    done = job.run("\n".join(written["script"]))
    assert done.returncode == 0, done.stderr
    assert page.is_log(done.stderr + done.stdout), done.stderr + done.stdout
    assert token not in done.stdout + done.stderr
    world.cluster.remove("deployments", "shop", "shop")


def test_auto_takes_the_job_and_says_so_when_it_is_asked(
    world: World, github_job: tuple[Job, GitHubActions, dict[str, Any]]
) -> None:
    job, _, _ = github_job
    quiet = job.run(f"ostiary get-token --server {shlex.quote(world.server)} --from auto > /dev/null")
    assert (quiet.returncode, quiet.stderr) == (0, "")
    told = job.run(f"ostiary get-token --server {shlex.quote(world.server)} --from auto --verbose > /dev/null")
    assert "cached" in told.stderr


@pytest.mark.parametrize("name", [FILE_PAGE, SPIFFE_PAGE])
def test_a_program_with_the_token_of_its_issuer_deploys(
    name: str, ca: trustme.CA, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """The script of the page, with a JWT in a file or with a SPIFFE agent."""
    site, issuer = Site(tmp_path / "gateway", ca), Issuer(ca, SYSTEM_CLOCK)
    (port,) = free_ports(1)
    page = WorkloadPage(name, f"https://localhost:{port}")
    site.policy(page.policy)
    (site.folder / "bundle.json").write_text(json.dumps({"keys": [public(issuer.key, use="jwt-svid")]}))
    changed = {"issuer": issuer.url, "ca": "ca.pem"} if name == FILE_PAGE else {}
    claims = {**MACHINE, "iss": issuer.url} if name == FILE_PAGE else JWT_SVID

    def sign(audience: str) -> str:
        return platform_token(SYSTEM_CLOCK, issuer.key, claims, audience=audience)

    # A path of a Unix socket is short.
    agent = SpiffeAgent(tmp_path_factory.mktemp("agent") / "agent.sock", sign)
    with Cluster(ca) as cluster, issuer.running(), agent.running():
        cluster.add_namespace("shop")
        sections = {**page.gateway, "identity": [{**page.identity, **changed}]}
        sections |= {"upstreams": [site.impersonating(cluster)], "listen": {"address": f"127.0.0.1:{port}"}}
        with site.serving(**sections) as gateway:
            job = Job(World(tmp_path, cluster, gateway, issuer, issuer), tmp_path / "job", {})
            (job.folder / "checkout/proof.jwt").write_text(sign(gateway.url()))
            done = job.run(page.script("job.sh").replace("unix:///run/spire/agent.sock", agent.endpoint))
    assert done.returncode == 0, done.stderr
    assert page.is_log(done.stderr + done.stdout), done.stderr + done.stdout


@pytest.mark.parametrize("name", [GITHUB_PAGE, GITLAB_PAGE])
def test_the_rules_for_several_repositories_are_right(name: str, ca: trustme.CA, tmp_path: Path) -> None:
    page = WorkloadPage(name)
    site = Site(tmp_path, ca)
    (part,) = page.parts
    site.policy(page.policy)
    (tmp_path / "cluster-token").write_text("token")
    config = site.write_config(**{**page.gateway, **part})
    checked = subprocess.run(
        [sys.executable, "-m", "ostiary_gateway", "serve", "--check", "--config", str(config)],
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )
    assert checked.returncode == 0, checked.stderr


# --- pods ---


def rotate(world: World, projected: Path) -> str:
    """Do as the kubelet: ask the API server for a token as the page's volume says, and replace the file."""
    _, _, pod = WorkloadPage(POD_PAGE, world.server).documents("pod.yaml")
    (volume,) = [each["projected"] for each in pod["spec"]["volumes"] if "projected" in each]
    wanted = volume["sources"][0]["serviceAccountToken"]
    metadata, account = pod["metadata"], pod["spec"]["serviceAccountName"]
    kubelet = {"token": world.cluster.add_token("kubelet")}
    body = encode_token_request(wanted["audience"], pod_name=metadata["name"], seconds=wanted["expirationSeconds"])
    server = ApiRequests(connect(world.cluster.kubeconfig(world.folder / "kubelet", kubelet)))
    reply = server.send("POST", token_path(metadata["namespace"], account), body)
    token = decode_token_request(reply.body, audience=wanted["audience"]).token.reveal()
    (projected.parent / "new").write_text(token)
    os.replace(projected.parent / "new", projected)
    return token


def test_a_pod_works_with_kubectl_on_rotated_tokens(world: World, tmp_path: Path) -> None:
    _, config, pod = WorkloadPage(POD_PAGE, world.server).documents("pod.yaml")
    (container,) = pod["spec"]["containers"]
    variables = {each["name"]: each["value"] for each in container["env"]}
    mounts = {each["name"]: each["mountPath"] for each in container["volumeMounts"]}
    assert variables["KUBECONFIG"] == f"{mounts['gateway']}/kubeconfig"
    assert f"{mounts['identity']}/token" == cached_workload_token.PROJECTED_TOKEN
    # The same files elsewhere: a test does not mount anything.
    kubeconfig, projected = tmp_path / "kubeconfig", tmp_path / "token"
    kubeconfig.write_text(config["data"]["kubeconfig"])
    variables = {"KUBECONFIG": str(kubeconfig), "OSTIARY_IDENTITY_TOKEN_FILE": str(projected)}
    job = Job(world, tmp_path, {**variables, "XDG_STATE_HOME": str(tmp_path / "state")})
    tokens = []
    for name in ("first", "second"):
        tokens.append(rotate(world, projected))
        manifest = f'{{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {{"name": "{name}"}}}}'
        done = job.run(f"echo '{manifest}' | kubectl create -f -\nkubectl get configmap {name} -o name")
        assert (done.returncode, done.stderr) == (0, "")
        assert f"configmap/{name}" in done.stdout
    users = [each.user for each in world.cluster.requests if each.method == "POST" and "configmaps" in each.path]
    assert {user.username for user in users if user is not None} == {"system:serviceaccount:shop:deployer"}
    cached = "".join(path.read_bytes().decode("latin-1") for path in (tmp_path / "state").rglob("*") if path.is_file())
    assert cached
    assert not any(token in cached for token in tokens)


def test_a_pod_without_the_volume_requests_a_token_for_itself(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the pod's own service account, bound to the pod, with the audience of the gateway and of nobody else."""
    folder = tmp_path / "serviceaccount"
    folder.mkdir()
    kubelet = {"token": world.cluster.add_token("kubelet")}
    server = ApiRequests(connect(world.cluster.kubeconfig(world.folder / "kubelet", kubelet)))
    audience = "https://kubernetes.default.svc"
    reply = server.send("POST", token_path("shop", "deployer"), encode_token_request(audience, pod_name="deployer"))
    own = decode_token_request(reply.body, audience=audience).token.reveal()
    (folder / "token").write_text(own)
    (folder / "namespace").write_text("shop")
    (folder / "ca.crt").write_bytes((world.gateway.site.folder / "ca.pem").read_bytes())
    for module in (cached_workload_token, kubernetes):
        monkeypatch.setattr(module, "PROJECTED_TOKEN", str(tmp_path / "none"))
        monkeypatch.setattr(module, "POD_TOKEN", str(folder / "token"))
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "localhost")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", str(world.cluster.port))
    proof = find_proof(PlatformChoice(world.server, "kubernetes"))
    assert proof.claims["aud"] == [world.server]
    assert proof.subject == "system:serviceaccount:shop:deployer"
    assert proof.token.reveal() != own
    authorities = (world.gateway.site.folder / "ca.pem").read_text()
    assert WorkloadTurn(PlatformChoice(world.server, "kubernetes"), authorities).token()

    world.cluster.refuse = lambda user, asked: "not this one" if asked.subresource == "token" else None
    try:
        with pytest.raises(CredentialError) as refused:
            find_proof(PlatformChoice(world.server, "kubernetes"))
    finally:
        world.cluster.refuse = None
    assert "the API server gives none" in (refused.value.cause or "")
    assert "projected volume" in (refused.value.hint or "")


def test_a_controller_runs_for_hours_on_rotated_tokens(ca: trustme.CA, tmp_path: Path, clock: FakeClock) -> None:
    """Six hours, ten minutes at a time: the kubelet renews the file, and the gateway's tokens live for minutes."""
    site, issuer = Site(tmp_path / "gateway", ca), Issuer(ca, clock)
    (port,) = free_ports(1)
    server, projected = f"https://localhost:{port}", tmp_path / "token"
    site.policy(role("shop", "configmaps", User="serviceaccount:shop:deployer"))
    written_at = clock.now()

    def renew(number: int) -> None:
        nonlocal written_at
        expires = int((clock.now() + timedelta(hours=1)).timestamp())
        claims = {**SERVICE_ACCOUNT, "jti": f"token-{number}", "exp": expires}
        projected.write_text(platform_token(clock, issuer.key, claims, issuer=issuer.url, audience=[server]))
        written_at = clock.now()

    with issuer.running(), Cluster(ca) as cluster:
        cluster.add_namespace("shop")
        identity = [
            {"name": "pods", "type": "workload", "platform": "kubernetes", "issuer": issuer.url, "ca": "ca.pem"}
        ]
        sections: dict[str, Any] = {
            "externalURL": server,
            "identity": identity,
            "upstreams": [site.impersonating(cluster)],
            "listen": {"address": f"127.0.0.1:{port}"},
        }
        choice = PlatformChoice(server, "kubernetes", token_file=str(projected))
        with site.in_process(clock=clock, **sections) as gateway:
            turn = WorkloadTurn(choice, (site.folder / "ca.pem").read_text(), clock)
            renew(0)
            used = set()
            for step in range(36):
                token = turn.token().reveal()
                used.add(token)
                answer = gateway.get("/api/v1/namespaces/shop/configmaps", token)
                assert answer.status_code == 200, (step, answer.text)
                clock.advance(minutes=10)
                if clock.now() - written_at >= timedelta(minutes=48):
                    renew(step)
            assert len(used) > 20, "tokens of minutes"
            # The kubelet stops: the controller works until the platform's token ends, and then says why it cannot.
            clock.advance(hours=2)
            with pytest.raises(CredentialError, match="no platform token") as ended:
                turn.token()
            assert "expired" in (ended.value.cause or "")
