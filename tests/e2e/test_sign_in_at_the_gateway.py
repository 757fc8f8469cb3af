"""A person's command line at the real gateway: every way to sign in, and kubectl afterwards."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import trustme

from ostiary.cli import main
from ostiary.cli.login.login_lock import Turn
from ostiary.cli.login.sessions import GatewayAccount, Sessions
from ostiary.cli.login.terminal import Wishes
from ostiary.model import Secret
from tests.support.cluster import Cluster
from tests.support.gateway import SECONDS, ServedGateway, Site, password, role
from tests.support.kubectl import find_kubectl, newest_exec_version
from tests.support.ports import free_port

Captured = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def gateway(ca: trustme.CA, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedGateway]:
    site = Site(tmp_path_factory.mktemp("gateway"), ca)
    site.users("alice")
    site.groups({"dev": ["alice"]})
    site.policy(role("team", "pods", Group="dev"))
    # The address that people see must be known before the gateway starts.
    port = free_port()
    with Cluster(ca) as cluster:
        cluster.add_namespace("team")
        with site.serving(
            upstreams=[site.impersonating(cluster)],
            listen={"address": f"127.0.0.1:{port}"},
            externalURL=f"https://localhost:{port}",
            groups=[{"name": "teams", "type": "file", "path": "groups.yaml"}],
        ) as running:
            yield running


class Alice:
    """At her terminal; *act* is what she does with a browser when she is told an address."""

    present = True

    def __init__(self, browser: httpx.Client) -> None:
        self.browser = browser

    def tell(self, text: str) -> None:
        found = re.search(r"https://\S+/auth/(cli|device)\?\S+", text)
        assert found is not None, text
        page = self._signed_in(self.browser.get(found[0]))
        if "form_token" in page.text:
            page = self._send(page, {"decision": "approve"})
        assert page.status_code == 200, page.text

    def _signed_in(self, page: httpx.Response) -> httpx.Response:
        if 'name="password"' not in page.text:
            return page
        return self._send(page, {"username": "alice", "password": password("alice")})

    def _send(self, page: httpx.Response, values: dict[str, str]) -> httpx.Response:
        action = re.search(r'<form[^>]*action="([^"]+)"', page.text)
        assert action is not None, page.text
        hidden = dict(re.findall(r'type="hidden" name="([^"]+)" value="([^"]*)"', page.text))
        origin = f"{page.url.scheme}://{page.url.netloc.decode()}"
        return self.browser.post(page.url.join(action[1]), data={**hidden, **values}, headers={"Origin": origin})

    def ask(self, prompt: str, default: str) -> str:
        return "alice"

    def ask_secret(self, prompt: str) -> Secret:
        return Secret(password("alice"))


@pytest.fixture
def alice(gateway: ServedGateway) -> Iterator[Alice]:
    headers = {"Accept": "text/html,application/xhtml+xml"}
    with httpx.Client(
        verify=gateway.trust, headers=headers, follow_redirects=True, timeout=SECONDS, trust_env=False
    ) as browser:
        yield Alice(browser)


@pytest.fixture
def authority(gateway: ServedGateway) -> Path:
    return gateway.site.folder / "ca.pem"


@pytest.mark.parametrize(
    ("wishes", "present"),
    [
        (Wishes(no_browser=True, seconds=SECONDS), False),
        (Wishes(device=True, seconds=SECONDS), False),
        (Wishes(seconds=SECONDS), True),
    ],
    ids=["browser", "device", "password"],
)
def test_each_way_to_sign_in_leads_to_the_same_session(
    gateway: ServedGateway, alice: Alice, authority: Path, wishes: Wishes, present: bool, capsys: Captured
) -> None:
    alice.present = present
    account = GatewayAccount(gateway.url())
    turn = Turn(account, wishes, alice, authorities_pem=authority.read_text())
    first = turn.sign_in().token
    assert first is not None
    assert main(["whoami", "-o", "json"]) == 0
    told: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert told["user"] == "alice"
    sources = {group["name"]: group["source"] for group in told["groups"]}
    assert sources["dev"].startswith("teams")
    Path(account.path("token")).unlink()
    renewed = Turn(account).credential().token
    assert renewed is not None
    assert renewed != first
    assert main(["logout", "--everywhere"]) == 0
    assert gateway.get("/auth/whoami", renewed.reveal()).status_code == 401
    assert Sessions(account).session() is None


@pytest.mark.needs("kubectl")
def test_kubectl_is_let_in_by_the_policy_of_the_gateway(
    gateway: ServedGateway, alice: Alice, authority: Path, tmp_path: Path, capsys: Captured
) -> None:
    turn = Turn(GatewayAccount(gateway.url()), Wishes(seconds=SECONDS), alice, authorities_pem=authority.read_text())
    turn.sign_in()
    assert main(["kubeconfig", "--namespace", "team"]) == 0
    made = capsys.readouterr().out.replace("k8s.io/v1\n", f"k8s.io/{newest_exec_version()}\n")
    (tmp_path / "config").write_text(made)
    command = [str(find_kubectl()), "--kubeconfig", str(tmp_path / "config"), "get", "pods"]
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    for namespace, code in (("team", 0), ("kube-system", 1)):
        done = subprocess.run(
            [*command, "--namespace", namespace],
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=100,
        )
        assert done.returncode == code, done.stderr
