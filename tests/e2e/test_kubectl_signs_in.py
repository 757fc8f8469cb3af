"""The whole chain, from a machine that has nothing to ``kubectl get pods``: sign in, stay signed in, be revoked.

Real processes throughout: ``ostiary-gateway serve`` before a cluster, kubectl at a terminal, the plugin that kubectl
runs, the browser that the plugin opens, and whoever knows the people: a certified OpenID Connect issuer,
SimpleSAMLphp, slapd, a KDC, and a stand-in of GitHub.
"""

from __future__ import annotations

import re
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import trustme

from tests.support.chromium import Chromium
from tests.support.cluster import Cluster
from tests.support.gateway import SECONDS, ServedGateway, Site, role
from tests.support.github import GitHub
from tests.support.kdc import PASSWORD as KDC_PASSWORD
from tests.support.kdc import PROGRAMS as KDC_PROGRAMS
from tests.support.kdc import REALM, running_kdc
from tests.support.kubectl import find_kubectl, newest_exec_version
from tests.support.oidc_provider import OidcProvider, installed
from tests.support.opened_browser import OpenedBrowser
from tests.support.programs import program_of
from tests.support.saml.documents import signer
from tests.support.saml.simplesamlphp import PASSWORD as SAML_PASSWORD
from tests.support.saml.simplesamlphp import SimpleSamlPhp
from tests.support.slapd import ACCOUNT, ACCOUNT_PASSWORD, GROUPS_BASE, PASSWORD, PEOPLE_BASE, slapd
from tests.support.terminal import AtTerminal
from tests.support.waiting import until

pytestmark = [pytest.mark.needs("kubectl"), pytest.mark.timeout(300)]
in_chromium = pytest.mark.needs("chromium", "node", "npm")

BIN = Path(sys.executable).parent
PODS = "/api/v1/namespaces/team/pods"
TOKEN = re.compile(r"os[tr]_[\w-]+")
OIDC_PASSWORD, OIDC_SECRET = "typed-at-the-issuer", "client-secret-of-the-gateway"
ALICE = {"email": "alice@example.com", "email_verified": True, "groups": ["developers", "drinkers"]}
OPERATOR = {"apiGroups": ["ostiary.dev"], "resources": ["*"], "verbs": ["*"]}


# --- the two sides ---


class Office:
    """Where the gateway runs before a cluster, and where its operator sits."""

    def __init__(self, site: Site, cluster: Cluster) -> None:
        self.site, self.cluster = site, cluster
        # What identity systems are told of the gateway must be known before it starts.
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port: int = free.getsockname()[1]
        self.url = f"https://localhost:{self.port}"

    def serving(
        self,
        identity: dict[str, Any],
        group: str,
        *,
        groups: dict[str, Any] | None = None,
        environment: dict[str, str] | None = None,
    ) -> ServedGateway:
        """A gateway with one way to sign in, which lets *group* see the pods of its team.

        *groups* is a group provider; without it the identity provider knows them.
        """
        self.site.policy(role("team", "pods", Group=group), role("", OPERATOR, Group="operators"))
        return self.site.serving(
            upstreams=[self.site.impersonating(self.cluster)],
            listen={"address": f"127.0.0.1:{self.port}"},
            externalURL=self.url,
            identity=[identity],
            groups=[groups or {"name": "teams", "provider": identity["name"]}],
            environment=environment,
        )

    def write(self, name: str, text: str) -> str:
        (self.site.folder / name).write_text(text)
        return name

    def revoke(self, user: str, *where: str) -> None:
        where = where or ("--config", str(self.site.folder / "gateway.yaml"))
        assert re.match(r"[12] sessions? ended", run_ostiary("sessions", "revoke", "user", user, *where))


class Machine:
    """A new machine: a home with nothing in it, kubectl, ostiary, and perhaps a browser."""

    def __init__(self, home: Path, gateway: ServedGateway) -> None:
        home.mkdir()
        self.home, self.gateway = home, gateway
        self.environment = {"HOME": str(home), "PATH": f"{BIN}:/usr/bin:/bin", "TERM": "dumb"}
        self.shown = ""
        """All that was ever seen at its terminals."""
        self.processes: set[str] = set()
        """The command lines of what ran here and in the gateway, as of when somebody looked."""
        self.tokens: list[str] = []
        """All that there ever were, the newest last."""

    def set_up(self) -> None:
        """What a person does once, and what an administrator could hand out: it holds no secret."""
        server = ("--server", self.gateway.url(), "--ca", str(self.gateway.site.folder / "ca.pem"))
        run_ostiary("kubeconfig", *server, "--namespace", "team", "--merge", env=self.environment)
        config = self.home / ".kube" / "config"
        config.write_text(config.read_text().replace("k8s.io/v1\n", f"k8s.io/{newest_exec_version()}\n"))
        assert [path for path in self.home.rglob("*") if path.is_file()] == [config]

    def get_pods(self, answer: Callable[[AtTerminal], None] = lambda _: None) -> Done:
        """kubectl at a terminal; *answer* is what a person does there."""
        self.terminal = AtTerminal([str(find_kubectl()), "get", "pods"], self.environment)
        answer(self.terminal)
        code, said = self.terminal.end()
        self.shown += self.terminal.shown
        found = [token for path in self.home.glob(".local/state/*/*") for token in TOKEN.findall(path.read_text())]
        self.tokens += [token for token in found if token not in self.tokens]
        return Done(code, said, self.terminal.shown)

    def get_pods_in_a_script(self) -> subprocess.CompletedProcess[str]:
        """kubectl where there is no terminal, and nobody to be asked."""
        command = [str(find_kubectl()), "get", "pods"]
        return subprocess.run(
            command,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            start_new_session=True,
        )

    def look_around(self) -> None:
        """As ``ps`` does; what kubectl runs, and what that runs, is still there while somebody signs in."""
        for process in (self.terminal.process.pid, self.gateway.pid):
            self.processes.update(_command_lines(process))

    def until_refused(self) -> None:
        """Ask until our token is no good any more: the gateway may hear of it from another process, in its own time."""
        newest = [token for token in self.tokens if token.startswith("ost_")][-1]
        with self.gateway.http(newest) as http:
            until(lambda: http.get(PODS).status_code == 401)

    def nothing_got_out(self, user: str, *secrets: str) -> None:
        """The logs know what *user* did. No token is in them, on a command line or at a terminal, nor are *secrets*."""
        site = self.gateway.site
        upstream = (site.folder / "token").read_text()
        places = {
            "the log": self.gateway.stderr + (site.folder / "stdout").read_text(),
            "the audit log": site.audit_log.read_text(),
            "a command line": "\n".join(self.processes),
            "a terminal": self.shown,
        }
        assert len(self.tokens) >= 4, "a token and its renewal token, twice"
        assert any("get-token" in line for line in self.processes)
        for place in ("the log", "the audit log"):
            assert user in places[place]
        for place, text in places.items():
            for secret in (*self.tokens, upstream, *secrets):
                assert secret not in text, f"it is in {place}"


@dataclass(frozen=True)
class Done:
    """How a kubectl ended. `shown` is what its terminal showed, which is all but stdout."""

    code: int
    stdout: str
    shown: str

    @property
    def has_pods(self) -> bool:
        return self.code == 0 and re.search(r"^web ", self.stdout, re.MULTILINE) is not None


def run_ostiary(*words: str, env: dict[str, str] | None = None) -> str:
    done = subprocess.run(
        [BIN / program_of(words[0]), *words], env=env, capture_output=True, text=True, timeout=SECONDS
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def _command_lines(process: int) -> Iterator[str]:
    """That of *process*, and those of all that it started."""
    try:
        yield Path(f"/proc/{process}/cmdline").read_bytes().replace(b"\0", b" ").decode()
        children = [path.read_text().split() for path in Path(f"/proc/{process}/task").glob("*/children")]
    except OSError:
        # It ended while we looked.
        return
    for child in chain(*children):
        yield from _command_lines(int(child))


@pytest.fixture
def office(tmp_path: Path, ca: trustme.CA) -> Iterator[Office]:
    with Cluster(ca) as cluster:
        cluster.add_namespace("team")
        cluster.add_pod("team", "web")
        yield Office(Site(tmp_path / "gateway", ca), cluster)


@pytest.fixture(scope="module")
def chromium() -> Iterator[Chromium]:
    with Chromium.running() as running:
        yield running


def tell(
    machine: Machine,
    revoke: Callable[[], None],
    asked: Callable[[], int],
    answer: Callable[[AtTerminal], None] = lambda _: None,
) -> None:
    """The story that is the same for all: *asked* counts how often the person was asked, and *answer* answers."""
    machine.set_up()
    first = machine.get_pods(answer)
    assert first.has_pods, first
    assert asked() == 1

    second = machine.get_pods()
    assert second.has_pods
    assert (second.shown, asked()) == ("", 1), "nothing is asked, and nothing is said"

    revoke()
    machine.until_refused()
    third = machine.get_pods(answer)
    # The refusal brings the person back, and kubectl repeats no request by itself: it says so, and so do we.
    assert third.code != 0
    assert "you are signed in again" in third.shown
    assert "Unauthorized" in third.shown
    assert asked() == 2

    fourth = machine.get_pods()
    assert fourth.has_pods
    assert (fourth.shown, asked()) == ("", 2)


# --- in a browser ---


@in_chromium
def test_a_new_machine_signs_in_with_openid_connect_in_the_browser(
    office: Office,
    chromium: Chromium,
    tmp_path: Path,
) -> None:
    """S19, S29, S39, L6."""
    callback = f"{office.url}/auth/acme/provider"
    client = {"client_id": "gateway", "client_secret": OIDC_SECRET, "redirect_uris": [callback]}
    folder = installed()
    chromium.person()

    def sign_in(address: str) -> None:
        machine.look_around()
        chromium.go(address)
        if len(browser.opened) == 1:
            # Not typed into whatever has the focus: a busy browser gives it late, and any other login is an account.
            chromium("fill_in", placeholder="Enter any login", text="alice")
            chromium("fill_in", placeholder="and password", text=OIDC_PASSWORD)
            chromium.click("button", "Sign-in")
            chromium.click("button", "Continue")
        chromium.see("You are signed in")

    with (
        OidcProvider.running(folder, clients=[client], accounts={"alice": ALICE}) as issuer,
        office.serving(
            {
                "name": "acme",
                "type": "oidc",
                "issuer": issuer.url,
                "clientID": "gateway",
                "clientSecretFile": office.write("oidc-secret", OIDC_SECRET),
                "scopes": ["email", "groups"],
                "claims": {"username": "email", "groups": "groups"},
            },
            "developers",
        ) as gateway,
        OpenedBrowser(tmp_path, sign_in) as browser,
    ):
        machine = Machine(tmp_path / "home", gateway)
        machine.environment["BROWSER"] = str(browser.path)
        tell(machine, lambda: office.revoke("alice@example.com"), lambda: len(browser.opened))
    machine.nothing_got_out("alice@example.com", OIDC_PASSWORD, OIDC_SECRET)


@in_chromium
@pytest.mark.needs("php")
def test_a_new_machine_signs_in_with_saml_in_the_browser(office: Office, chromium: Chromium, tmp_path: Path) -> None:
    """S1, S10, S19, S29, S39, L6."""
    key = signer("gateway")
    chromium.person()

    def sign_in(address: str) -> None:
        machine.look_around()
        chromium.go(address)
        if len(browser.opened) == 1:
            chromium.fill("Username", "alice")
            chromium.fill("Password", SAML_PASSWORD)
            chromium.click("button", "Login")
        chromium.see("You are signed in")

    with (
        SimpleSamlPhp.running(tmp_path / "simplesamlphp", encryption=True) as idp,
        office.serving(
            {
                "name": "acme",
                "type": "saml",
                "metadataURL": idp.metadata_url,
                "keyFile": office.write("saml.key", key.key_pem.decode()),
                "certificateFile": office.write("saml.crt", key.certificate_pem.decode()),
                "attributes": {"username": "mail", "groups": "groups"},
                # What this version of it encrypts with.
                "encryption": {"required": True, "cbc": True},
            },
            "developers",
        ) as gateway,
        OpenedBrowser(tmp_path, sign_in) as browser,
    ):
        idp.trust(gateway.get("/auth/metadata").text)
        machine = Machine(tmp_path / "home", gateway)
        machine.environment["BROWSER"] = str(browser.path)
        tell(machine, lambda: office.revoke("alice@example.com"), lambda: len(browser.opened))
    machine.nothing_got_out("alice@example.com", SAML_PASSWORD, key.key_pem.decode().splitlines()[3])


@in_chromium
def test_a_new_machine_signs_in_with_github_in_the_browser(
    office: Office, chromium: Chromium, tmp_path: Path, ca: trustme.CA
) -> None:
    """S19, S29, S39, L6."""
    chromium.person()

    def sign_in(address: str) -> None:
        machine.look_around()
        chromium.go(address)
        chromium.see("Signed in as octocat")
        chromium.click("button", "Authorize")
        chromium.see("You are signed in")

    with (
        GitHub(ca).running() as github,
        office.serving(
            {
                "name": "github",
                "type": "github",
                "hostname": github.host,
                "ca": "ca.pem",
                "clientID": github.client_id,
                "clientSecretFile": office.write("github-secret", github.client_secret),
                "tokenFile": office.write("github-token", github.operator_token),
                "allowedOrganizations": ["acme"],
                "groupsFrom": ["acme"],
            },
            "acme:platform",
        ) as gateway,
        OpenedBrowser(tmp_path, sign_in) as browser,
    ):
        github.shows_page = True
        machine = Machine(tmp_path / "home", gateway)
        machine.environment["BROWSER"] = str(browser.path)
        tell(machine, lambda: office.revoke("octocat"), lambda: len(browser.opened))
    machine.nothing_got_out("octocat", github.client_secret, github.operator_token, *github.tokens)


# --- with a password, at the terminal ---


@pytest.mark.needs("python-ldap", "slapd", "slapadd")
def test_a_new_machine_signs_in_with_a_password_of_the_directory_at_the_terminal(
    office: Office, tmp_path: Path, ca: trustme.CA
) -> None:
    """S19, S28, S39, L6."""

    def sign_in(terminal: AtTerminal) -> None:
        terminal.read_until("username at ")
        terminal.type("alice\n")
        terminal.read_until("password: ")
        machine.look_around()
        terminal.type(f"{PASSWORD}\n")

    def revoke() -> None:
        """By the gateway's API, as an operator who has signed in."""
        token = gateway.get("/auth", auth=("bob", PASSWORD)).json()["token"]
        ours = ("--server", gateway.url(), "--ca", str(gateway.site.folder / "ca.pem"))
        office.revoke("alice", *ours, "--token-file", str(office.site.folder / office.write("operator-token", token)))

    folder = tmp_path / "slapd"
    folder.mkdir()
    with (
        slapd(folder, ca) as directory,
        office.serving(
            {
                "name": "staff",
                "type": "ldap",
                "url": directory.ldaps,
                "ca": str(directory.ca),
                "bindDN": ACCOUNT,
                "bindPasswordFile": office.write("ldap-password", ACCOUNT_PASSWORD),
                "userSearch": {"baseDN": PEOPLE_BASE},
                "groupSearch": {"baseDN": GROUPS_BASE},
            },
            "developers",
        ) as gateway,
    ):
        machine = Machine(tmp_path / "home", gateway)
        tell(machine, revoke, lambda: machine.shown.count("password: "), sign_in)

        revoke()
        machine.until_refused()
        script = machine.get_pods_in_a_script()
        assert (script.returncode, script.stdout) == (1, "")
        assert "sign in first" in script.stderr
        assert f"ostiary login --server {gateway.url()}" in script.stderr
        # By now it is known that the session has ended: the next one signs in before it asks for anything.
        fifth = machine.get_pods(sign_in)
        assert fifth.has_pods
        assert machine.shown.count("password: ") == 3
    machine.nothing_got_out("alice", PASSWORD, ACCOUNT_PASSWORD)


# --- with a ticket, and without a word ---


@pytest.mark.needs("python-ldap", "gssapi", "slapd", "slapadd", *KDC_PROGRAMS)
def test_a_new_machine_signs_in_with_the_ticket_that_its_person_has_and_asks_nobody(
    office: Office, tmp_path: Path, ca: trustme.CA
) -> None:
    """S10, S19, S30, S39, L6."""
    for name in ("slapd", "kdc"):
        (tmp_path / name).mkdir()

    def watch(_: AtTerminal) -> None:
        while machine.terminal.process.poll() is None and not any("get-token" in line for line in machine.processes):
            machine.look_around()

    with running_kdc(tmp_path / "kdc") as kdc, slapd(tmp_path / "slapd", ca) as directory:
        kdc.add_person("alice")
        kdc.add_service("HTTP/localhost")
        staff = {
            "name": "staff",
            "type": "kerberos",
            "keytab": str(kdc.keytab("HTTP/localhost")),
            "realms": [{"name": REALM}],
            "channelBinding": "required",
        }
        teams = {
            "name": "teams",
            "type": "ldap",
            "url": directory.ldaps,
            "ca": str(directory.ca),
            "bindDN": ACCOUNT,
            "bindPasswordFile": office.write("ldap-password", ACCOUNT_PASSWORD),
            "userSearch": {"baseDN": PEOPLE_BASE},
            "groupSearch": {"baseDN": GROUPS_BASE},
            "requireUser": True,
        }
        with office.serving(staff, "developers", groups=teams, environment=kdc.environment) as gateway:
            machine = Machine(tmp_path / "home", gateway)
            machine.environment |= {**kdc.environment, "KRB5CCNAME": kdc.kinit("alice")}
            machine.set_up()
            for first in (machine.get_pods(watch), machine.get_pods()):
                assert first.has_pods, first
                # The ticket is all that it takes.
                assert first.shown == "", "nothing is asked, and nothing is said"

            office.revoke("alice")
            machine.until_refused()
            assert "you are signed in again" in machine.get_pods().shown
            after = machine.get_pods()
            assert (after.has_pods, after.shown) == (True, "")

            office.revoke("alice")
            machine.until_refused()
            refused, again = machine.get_pods_in_a_script(), machine.get_pods_in_a_script()
            assert "Unauthorized" in refused.stderr
            # Where no person is, either.
            assert (again.returncode, again.stderr) == (0, "")

            office.revoke("alice")
            machine.until_refused()
            machine.environment["KRB5CCNAME"] = kdc.environment["KRB5CCNAME"]
            machine.get_pods()
            without = machine.get_pods()
            assert without.code != 0
            assert "get a ticket with kinit" in without.shown
        machine.nothing_got_out("alice", KDC_PASSWORD, ACCOUNT_PASSWORD)
