"""A rule requires a second factor: kubectl's request waits, one tab opens, and the very command prints its result.

Real processes throughout: ``ostiary-gateway serve`` before a cluster, kubectl at a terminal, the plugin that kubectl
runs, the process beside it, the browser that this opens, and a certified OpenID Connect issuer.
"""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import trustme

from tests.support.chromium import Chromium
from tests.support.cluster import Cluster
from tests.support.gateway import SECONDS, ServedGateway, Site, role
from tests.support.kubectl import find_kubectl, newest_exec_version
from tests.support.oidc_provider import OidcProvider, installed
from tests.support.opened_browser import OpenedBrowser
from tests.support.page_checks import check_page
from tests.support.terminal import AtTerminal

pytestmark = [pytest.mark.needs("kubectl", "chromium", "node", "npm"), pytest.mark.timeout(300)]

BIN = Path(sys.executable).parent
ALICE = {"email": "alice@example.com", "email_verified": True, "groups": ["developers"]}
BY_PASSWORD, WITH_SECOND_FACTOR = {**ALICE, "amr": ["pwd"]}, {**ALICE, "amr": ["pwd", "mfa"]}
PODS = {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "delete", "create"]}
RULE = {"name": "delete-pods", "verbs": ["delete"], "resources": ["pods"], "amr": ["mfa"], "maxAge": "15m"}


class Desk:
    """A person with a machine: kubectl at a terminal, and a browser. `opened` are the addresses it was given."""

    def __init__(self, home: Path, gateway: ServedGateway, issuer: OidcProvider, chromium: Chromium) -> None:
        home.mkdir()
        self.home, self.gateway, self.issuer, self.chromium = home, gateway, issuer, chromium
        self.environment = {"HOME": str(home), "PATH": f"{BIN}:/usr/bin:/bin", "TERM": "dumb"}
        self.is_signed_in = False
        # What the page says before a step-up.
        self.confirms = "delete pods web in the namespace team"
        server = ("--server", gateway.url(), "--ca", str(gateway.site.folder / "ca.pem"))
        self.ostiary("kubeconfig", *server, "--namespace", "team", "--merge")
        config = home / ".kube" / "config"
        config.write_text(config.read_text().replace("k8s.io/v1\n", f"k8s.io/{newest_exec_version()}\n"))

    def ostiary(self, *words: str) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [BIN / "ostiary", *words], env=self.environment, capture_output=True, text=True, timeout=SECONDS
        )
        assert done.returncode == 0, done.stderr
        return done

    def kubectl(self, *words: str) -> AtTerminal:
        return AtTerminal([str(find_kubectl()), *words], self.environment)

    def act(self, address: str) -> None:
        """What the person does with a page that opens."""
        chromium = self.chromium
        chromium.go(address)
        if "step_up=" in address:
            chromium.see("Confirm that it is you")
            check_page(chromium, "step-up", alone=False)
            chromium.see(self.confirms)
            chromium.click("link", "Continue")
        self._sign_in_at_issuer()
        chromium.see("You are signed in")

    def _sign_in_at_issuer(self) -> None:
        chromium = self.chromium
        chromium("fill_in", placeholder="Enter any login", text="alice")
        chromium("fill_in", placeholder="and password", text="any")
        chromium.click("button", "Sign-in")
        if not self.is_signed_in:
            chromium.click("button", "Continue")
            self.is_signed_in = True


@pytest.fixture(scope="module")
def chromium() -> Iterator[Chromium]:
    with Chromium.running() as running:
        yield running


@contextmanager
def office(tmp_path: Path, ca: trustme.CA, chromium: Chromium, **step_up: Any) -> Iterator[tuple[Desk, OpenedBrowser]]:
    site = Site(tmp_path / "gateway", ca)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port: int = free.getsockname()[1]
    url = f"https://localhost:{port}"
    client = {"client_id": "gateway", "client_secret": "secret", "redirect_uris": [f"{url}/auth/acme/provider"]}
    chromium.person()
    with (
        Cluster(ca) as cluster,
        OidcProvider.running(installed(), clients=[client], accounts={"alice": BY_PASSWORD}) as issuer,
    ):
        cluster.add_namespace("team")
        cluster.add_pod("team", "web")
        site.policy(role("team", PODS, Group="developers"))
        (site.folder / "oidc-secret").write_text("secret")
        identity = {
            "name": "acme",
            "type": "oidc",
            "issuer": issuer.url,
            "clientID": "gateway",
            "clientSecretFile": "oidc-secret",
            "scopes": ["email", "groups"],
            "claims": {"username": "email", "groups": "groups"},
        }
        with site.serving(
            upstreams=[site.impersonating(cluster)],
            listen={"address": f"127.0.0.1:{port}"},
            externalURL=url,
            identity=[identity],
            groups=[{"name": "teams", "provider": "acme"}],
            stepUp={"rules": [RULE], **step_up},
        ) as gateway:
            desk = Desk(tmp_path / "home", gateway, issuer, chromium)
            with OpenedBrowser(tmp_path, desk.act) as browser:
                desk.environment["BROWSER"] = str(browser.path)
                yield desk, browser


def in_script(desk: Desk, command: list[str]) -> subprocess.CompletedProcess[str]:
    """Where there is no terminal, and nobody to be asked."""
    return subprocess.run(
        command,
        env=desk.environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        start_new_session=True,
    )


def audited(desk: Desk) -> list[dict[str, Any]]:
    return [json.loads(line) for line in desk.gateway.site.audit_log.read_text().splitlines()]


def test_a_command_waits_for_one_tab_and_goes_on(
    tmp_path: Path,
    ca: trustme.CA,
    chromium: Chromium,
) -> None:
    with office(tmp_path, ca, chromium) as (desk, browser):
        listed = desk.kubectl("get", "pods")
        code, said = listed.end()
        assert (code, len(browser.opened)) == (0, 1), listed.shown
        assert re.search(r"^web ", said, re.MULTILINE)

        desk.issuer.change_accounts({"alice": WITH_SECOND_FACTOR})
        deleting = desk.kubectl("delete", "pod", "web", "--wait=false")
        code, said = deleting.end()
        assert (code, said) == (0, 'pod "web" deleted\n'), deleting.shown
        assert len(browser.opened) == 2
        assert (
            '"delete pods web in the namespace team" needs a sign-in by mfa, in the last 15 minutes' in deleting.shown
        )

        created = desk.kubectl("run", "web", "--image=web")
        assert created.end()[0] == 0, created.shown
        again = desk.kubectl("delete", "pod", "web", "--wait=false")
        assert again.end()[0] == 0, again.shown
        assert len(browser.opened) == 2, "for a quarter of an hour nothing more is asked"

        deletions = [event for event in audited(desk) if event["verb"] == "delete"]
        assert {event["annotations"]["audit.ostiary.dev/step-up"] for event in deletions} == {"delete-pods"}
        assert any(event["annotations"].get("ostiary.dev/login") == "stepped up" for event in audited(desk))


def test_over_ssh_one_code_is_shown_and_the_command_goes_on(
    tmp_path: Path,
    ca: trustme.CA,
    chromium: Chromium,
) -> None:
    with office(tmp_path, ca, chromium) as (desk, browser):
        assert desk.kubectl("get", "pods").end()[0] == 0
        desk.issuer.change_accounts({"alice": WITH_SECOND_FACTOR})
        # From here on there is no browser on the machine.
        del desk.environment["BROWSER"]
        deleting = desk.kubectl("delete", "pod", "web", "--wait=false")
        deleting.read_until("or open https://")
        deleting.read_until("code=")
        deleting.read_until("\n")
        address = re.findall(r"or open (https://\S+)", deleting.shown)
        assert len(address) == 1, deleting.shown
        chromium.go(address[0])
        desk._sign_in_at_issuer()
        chromium.click("button", "Approve")
        chromium.see("Confirmed")
        code, said = deleting.end()
        assert (code, said) == (0, 'pod "web" deleted\n'), deleting.shown
        assert len(browser.opened) == 1, "the sign-in"


def test_where_nothing_is_held_the_plugin_asks_and_the_next_command_works(
    tmp_path: Path,
    ca: trustme.CA,
    chromium: Chromium,
) -> None:
    with office(tmp_path, ca, chromium, hold="0s") as (desk, browser):
        assert desk.kubectl("get", "pods").end()[0] == 0
        desk.issuer.change_accounts({"alice": WITH_SECOND_FACTOR})
        deleting = desk.kubectl("delete", "pod", "web", "--wait=false")
        code, _ = deleting.end()
        assert code != 0
        assert "confirmed; run the command that failed again" in deleting.shown
        assert len(browser.opened) == 2
        again = desk.kubectl("delete", "pod", "web", "--wait=false")
        assert again.end()[0] == 0, again.shown
        assert len(browser.opened) == 2


def test_a_script_is_told_what_to_do_and_a_person_can_do_it_beforehand(
    tmp_path: Path,
    ca: trustme.CA,
    chromium: Chromium,
) -> None:
    with office(tmp_path, ca, chromium) as (desk, browser):
        desk.confirms = "Rule"
        assert desk.kubectl("get", "pods").end()[0] == 0
        command = [str(find_kubectl()), "delete", "pod", "web", "--wait=false"]
        refused = in_script(desk, command)
        assert refused.returncode == 1
        assert "step-up required" in refused.stderr
        assert f"ostiary login --step-up delete-pods --server {desk.gateway.url()}" in refused.stderr
        assert len(browser.opened) == 1, "nobody was asked"

        desk.issuer.change_accounts({"alice": WITH_SECOND_FACTOR})
        said = desk.ostiary("login", "--step-up", "--server", desk.gateway.url()).stderr
        assert "a sign-in by mfa, in the last 15 minutes (rule delete-pods)" in said
        done = in_script(desk, command)
        assert (done.returncode, done.stdout) == (0, 'pod "web" deleted\n'), done.stderr
