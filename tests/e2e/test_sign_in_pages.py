"""The pages in a real browser, at a real gateway: by mouse or keyboard, in light and dark, on a desk and on a phone."""

from __future__ import annotations

import base64
import hashlib
import os
import queue
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
import trustme
import yaml

from ostiary.cli.login.browser import Return
from ostiary.cli.login.sessions import SignInGrant
from ostiary.errors import LoginRefused
from ostiary.model import Secret
from ostiary_gateway.interfaces.token_store import RevocationKind
from tests.support.chromium import Chromium
from tests.support.cluster import Cluster
from tests.support.gateway import SECONDS, Site, password, role
from tests.support.http_server import HttpServer, Request, Response
from tests.support.noting_store import NotingStore
from tests.support.pages_in_browser import PagesInBrowser
from tests.support.ports import free_port

pytestmark = [pytest.mark.needs("chromium", "node", "npm"), pytest.mark.timeout(300)]

PODS = "/api/v1/namespaces/team/pods"
SHOWN = frozenset(
    (
        *("choose-light", "password-wrong-light", "home-light", "home-dark", "token-light", "token-phone"),
        *("sessions-light", "sessions-phone", "device-confirm-light", "device-confirm-dark", "device-confirm-phone"),
        *("command-line-light", "command-line-ended-dark", "error-light"),
        *("api-tokens-light", "api-tokens-dark", "api-tokens-phone", "api-token-made-light"),
        "narrow-light",
    )
)
ADMIN = {"apiGroups": ["ostiary.dev"], "resources": ["*"], "verbs": ["*"]}
OWN_TOKENS = {"apiGroups": ["ostiary.dev"], "resources": ["apitokens"], "verbs": ["create", "list", "delete"]}
HOSTILE = "<img src=x onerror=document.title=1>"


@pytest.fixture(scope="module")
def running(ca: trustme.CA, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PagesInBrowser]:
    site = Site(tmp_path_factory.mktemp("gateway"), ca)
    site.users("alice", "root", HOSTILE)
    site.groups({"developers": ["staff:alice"], "on call": ["staff:alice"]})
    site.policy(
        role("team", "pods", Group="developers"),
        role("team", "configmaps", Group="on call"),
        role("", ADMIN, User="staff:root"),
        role("", OWN_TOKENS, User="staff:alice"),
    )
    port = 8443 if os.environ.get("OSTIARY_PICTURES") else free_port()
    url = f"https://localhost:{port}"
    with Cluster(ca) as cluster, Chromium.running() as chromium, pytest.MonkeyPatch.context() as patch:
        cluster.add_namespace("team")
        # A store that replicas share; the name of this machine is not for the pictures.
        store = NotingStore(str(site.folder / "shared.db"))
        patch.setattr(socket, "gethostname", lambda: "gateway-0")
        with site.in_process(
            lambda config: replace(config, store=replace(config.store, instance=store)),
            upstreams=[site.impersonating(cluster)],
            listen={"address": f"127.0.0.1:{port}"},
            externalURL=url,
            externalCA="ca.pem",
            identity=[
                {"name": "staff", "type": "htpasswd", "path": "users", "prefix": "staff:"},
                {"name": "guests", "type": "htpasswd", "path": "users", "prefix": "guest:"},
            ],
            groups=[{"name": "teams", "type": "file", "path": "groups.yaml"}],
            apiTokens={"enabled": True},
        ) as gateway:
            yield PagesInBrowser(gateway, chromium, url, SHOWN)


def test_a_person_chooses_a_provider_and_signs_in_with_the_keyboard_alone(running: PagesInBrowser) -> None:
    """S18, S31."""
    chromium = running.chromium
    chromium.person()
    assert chromium.go(f"{running.url}/auth") == 200
    running.looked_at("choose")
    chromium.press("Tab", "Tab")
    assert chromium("focused") == ["A", "Sign in with staff"]
    chromium.press("Enter")
    chromium("text", of="#username ~ button")
    assert chromium("focused") == ["INPUT", "username"]
    running.looked_at("password")
    chromium("type", text="alice")
    chromium.press("Tab")
    chromium("type", text=password("alice"))
    chromium.press("Enter")
    chromium("text", of="text=You are signed in")
    assert chromium.url == f"{running.url}/auth/token"
    assert "staff:alice" in chromium.text
    running.looked_at("home")


def test_a_wrong_password_is_told_on_the_form(running: PagesInBrowser) -> None:
    """S20."""
    chromium = running.chromium
    chromium.person()
    chromium.go(f"{running.url}/auth/staff")
    running.fill_in("alice", "wrong")
    assert "Wrong user name or password." in chromium.text
    assert chromium("title").startswith("Error: ")
    assert chromium("focused") == ["INPUT", "password"], "the name stays"
    running.looked_at("password-wrong")
    chromium("type", text=password("alice"))
    chromium.press("Enter")
    chromium("text", of="text=You are signed in")


def test_a_token_is_shown_once_can_be_copied_and_works(running: PagesInBrowser) -> None:
    """S8, S18, S21."""
    running.sign_in("alice")
    chromium = running.chromium
    chromium.click("button", "Show a new token")
    token = chromium("text", of="#token").strip()
    assert re.fullmatch(r"ost_\w{51}", token)
    running.looked_at("token")
    chromium.click("button", "Copy the token")
    assert "Copied." in chromium("text", of="text=Copied.")
    assert chromium("clipboard") == token
    assert running.gateway.get(PODS, token).status_code == 200
    chromium.click("link", "Done")
    assert token not in chromium.text


def test_a_person_makes_a_token_with_less_power_for_an_agent(running: PagesInBrowser) -> None:
    running.sign_in("alice")
    chromium = running.chromium
    chromium.click("link", "A token with less power")
    running.looked_at("narrow")
    chromium.fill("It may", "get,list pods")
    chromium.click("button", "Make the token")
    chromium.see("The rule names no namespace")
    assert "API tokens" in chromium("text", of="header nav"), "the navigation stays as it was"
    running.looked_at("narrow-wrong")
    chromium.fill("It may", "get,list pods -n team")
    chromium.fill("Who uses it", "release-agent")
    chromium.click("button", "Make the token")
    token = chromium("text", of="#token").strip()
    assert re.fullmatch(r"ost_\w{51}", token)
    for text in ("discovery; get,list pods -n team", "release-agent", "staff:alice"):
        assert text in chromium.text
    running.looked_at("narrowed")
    assert running.gateway.get(PODS, token).status_code == 200
    refused = running.gateway.get("/api/v1/namespaces/team/configmaps", token)
    assert refused.status_code == 403
    assert "beyond this token's scope" in refused.json()["message"]
    chromium.click("link", "Done")
    chromium.click("link", "My sessions")
    assert "release-agent: discovery; get,list pods -n team" in chromium.text


def test_the_cookie_is_kept_from_scripts_and_the_pages_from_them_too(running: PagesInBrowser) -> None:
    """L4, L5."""
    running.sign_in("alice")
    (cookie,) = [one for one in running.chromium("cookies") if one["name"] == "__Host-ostiary-session"]
    assert (cookie["httpOnly"], cookie["secure"], cookie["sameSite"]) == (True, True, "Lax")
    # Our own policy lets no script of ours ask either; an upstream's page may have another.
    with running.gateway.http(headers=[("Sec-Fetch-Mode", "cors"), ("Accept", "text/html")]) as http:
        http.cookies.set(cookie["name"], cookie["value"])
        assert http.get("/auth/sessions").status_code == 403


def test_a_person_ends_one_session_and_then_all(running: PagesInBrowser) -> None:
    chromium = running.chromium
    # Others of these tests have signed her in, too.
    tokens = running.gateway.worker.app.shared.tokens
    running.gateway.call(lambda: tokens.revoke(RevocationKind.USER, "staff:alice"))
    running.sign_in("alice")
    laptop = running.gateway.get(
        "/auth/staff", auth=("alice", password("alice")), headers={"User-Agent": "kubectl/1.38 (laptop)"}
    ).json()["token"]
    assert running.gateway.get(PODS, laptop).status_code == 200
    chromium.click("link", "My sessions")
    assert "kubectl/1.38 (laptop) from 127.0.0.1" in chromium.text
    assert "teams: file groups.yaml" in chromium.text, "where the groups come from"
    running.looked_at("sessions")
    chromium.click("button", "End the session of kubectl/1.38 (laptop)")
    assert "laptop" not in chromium.text
    assert running.gateway.get(PODS, laptop).status_code == 401
    chromium.click("button", "Sign out everywhere")
    assert "This browser is signed out." in chromium.text
    running.looked_at("signed-out")
    chromium.go(f"{running.url}/auth/sessions")
    assert chromium.url == f"{running.url}/auth"


def test_a_person_makes_an_api_token_for_a_program_and_revokes_it(running: PagesInBrowser) -> None:
    chromium = running.chromium
    running.sign_in("alice")
    chromium.click("link", "API tokens")
    assert "You have no API tokens." in chromium.text
    chromium.fill("Name", "nightly backup")
    chromium.fill("Expires after (days, at most 90)", "91")
    chromium.click("button", "Make the token")
    assert "2160h at most" in chromium.text
    running.looked_at("api-tokens-wrong")
    chromium.fill("Expires after (days, at most 90)", "30")
    chromium.fill("Only for (optional)", "get,list pods -n team")
    chromium.click("button", "Make the token")
    found = re.search(r"osp_[0-9A-Za-z]{43}[0-9a-f]{8}", chromium.text)
    assert found is not None
    running.looked_at("api-token-made")
    assert running.gateway.get(PODS, found[0]).status_code == 200
    chromium.click("link", "Done")
    assert found[0] not in chromium.text
    assert "get,list pods -n team" in chromium.text
    running.looked_at("api-tokens")
    chromium.click("button", "Revoke the token nightly backup")
    assert "You have no API tokens." in chromium.text
    assert running.gateway.get(PODS, found[0]).status_code == 401


def test_a_device_is_approved(running: PagesInBrowser) -> None:
    """L5."""
    chromium = running.chromium
    with running.gateway.http() as http:
        asked = http.post("/auth/device", data={"client": "ostiary on build-7"}).json()
        chromium.person()
        chromium.go(asked["verification_uri"])
        running.looked_at("device")
        chromium.fill("Code", asked["user_code"].lower())
        chromium.click("button", "Continue")
        chromium.click("link", "Sign in with staff")
        running.fill_in("alice")
        assert all(text in chromium.text for text in (asked["user_code"], "ostiary on build-7", "127.0.0.1"))
        running.looked_at("device-confirm")
        chromium.click("button", "Approve")
        assert "The device is signed in" in chromium.text
        running.looked_at("device-approved")
        told = http.post("/auth/device/token", data={"device_code": asked["device_code"]}).json()
    assert running.gateway.get(PODS, told["token"]).status_code == 200
    chromium.go(f"{running.url}/auth/device")
    chromium.fill("Code", "BCDF-GHJK")
    chromium.click("button", "Continue")
    assert "Unknown code" in chromium.text
    running.looked_at("device-unknown")


def test_a_command_line_is_signed_in_with_the_form_and_then_with_a_word(running: PagesInBrowser) -> None:
    """S19, L2: a form of ours may end at the command line, and a browser agrees."""
    chromium, verifier = running.chromium, "v" * 43
    challenge = base64.urlsafe_b64encode(hashlib.sha256(verifier.encode()).digest()).decode().rstrip("=")
    with Callback().running() as callback, running.gateway.http() as http:
        address = f"{running.url}/auth/cli?challenge={challenge}&port={callback.port}&state=s&client=ostiary+login"
        chromium.person()
        chromium.go(address)
        running.looked_at("command-line-choose")
        chromium.click("link", "Sign in with staff")
        running.fill_in("alice")
        for step in ("signed in", "a word"):
            (code,) = callback.next().query.get_list("code")
            told = http.post("/auth/cli/token", data={"code": code, "verifier": verifier}).json()
            assert told["user"] == "staff:alice", step
            if step == "signed in":
                chromium.go(address)
                assert "A program on this computer wants to act as staff:alice" in chromium.text
                running.looked_at("command-line")
                chromium.click("button", "Continue")
    assert "You can go back" in chromium.text


class Callback(HttpServer):
    """A command line that waits for its browser."""

    def __init__(self) -> None:
        super().__init__(self._respond)
        self._callbacks: queue.Queue[Request] = queue.Queue()

    def next(self) -> Request:
        return self._callbacks.get(timeout=SECONDS)

    def _respond(self, request: Request) -> Response:
        if request.path == "/callback":
            self._callbacks.put(request)
        return Response(200, b"You can go back to your terminal.", {"Content-Type": "text/plain"})


def test_what_went_wrong_is_told_with_a_number(running: PagesInBrowser) -> None:
    """S20."""
    chromium = running.chromium
    chromium.person()
    assert chromium.go(f"{running.url}/auth/staff/provider?code=1") == 403
    assert "There is no sign-in to continue: start again." in chromium.text
    assert re.search(r"include this request id: \S{10,}", chromium.text)
    running.looked_at("error")
    assert chromium.go(f"{running.url}/auth/nobody") == 404


def test_a_name_that_looks_like_html_is_a_name(running: PagesInBrowser) -> None:
    chromium = running.chromium
    running.sign_in(HOSTILE)
    for path in ("/auth/token", "/auth/sessions"):
        chromium.go(running.url + path)
        assert f"staff:{HOSTILE}" in chromium.text
        assert "ostiary" in chromium("title")


@pytest.mark.needs("kubectl")
def test_what_the_page_gives_out_is_one_kubeconfig_and_trusts_the_gateways_own_authority(
    running: PagesInBrowser, tmp_path: Path
) -> None:
    """The one line, the commands for kubectl and the download make the same, and each of them works."""
    running.sign_in("alice")
    chromium = running.chromium
    lines = {"line": chromium("text", of="#command"), "commands": chromium("content", of="#commands")}
    assert "\n" not in lines["line"]
    made = {"download": yaml.safe_load(running.gateway.get("/auth/kubeconfig").text)}
    for name, text in lines.items():
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        environment = {**os.environ, "KUBECONFIG": str(tmp_path / name), "PATH": path, "HOME": str(tmp_path)}
        run = ["bash", "-ec", text]
        subprocess.run(run, check=True, cwd=tmp_path, env=environment, capture_output=True, timeout=SECONDS)
        made[name] = yaml.safe_load((tmp_path / name).read_text())
    for name, config in made.items():
        for key in ("clusters", "contexts", "current-context"):
            assert config[key] == made["line"][key], name
        ours, other = (each["users"][0]["user"]["exec"] for each in (made["line"], config))
        for key in ("apiVersion", "command", "args", "interactiveMode", "provideClusterInfo"):
            assert ours[key] == other[key], name
    data = made["line"]["clusters"][0]["cluster"]["certificate-authority-data"]
    assert base64.b64decode(data) == running.gateway.site.ca.cert_pem.bytes()


def test_the_page_at_which_a_command_line_sign_in_ends_looks_like_the_others(running: PagesInBrowser) -> None:
    """In light and dark and on a phone, and with nothing that axe objects to; also when it fails."""
    chromium = running.chromium

    def redeem(code: str) -> SignInGrant:
        if code != "good":
            raise LoginRefused("the gateway refused the sign-in")
        end = datetime(2999, 1, 1, tzinfo=UTC)
        return SignInGrant(Secret("t"), end, Secret("r"), "s1", end, "ann")

    for code, heading in (("good", "You are signed in on the command line"), ("bad", "You are not signed in")):
        returning = Return(redeem, running.url)
        try:
            chromium.person()
            chromium.go(f"http://127.0.0.1:{returning.port}/callback?state={returning.state}&code={code}")
            chromium.see(heading)
            running.looked_at("command-line-ended" if code == "good" else "command-line-refused")
            assert chromium("problems") == [] or code == "bad"
        finally:
            returning.close()
