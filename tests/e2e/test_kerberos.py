"""Kerberos at a real gateway, with tickets of a real KDC: programs, curl, a browser, and everything that goes wrong.

The groups come from a real directory. What a person is told is a sentence; what went wrong stands in the log.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from base64 import b64decode, b64encode
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import trustme
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509 import load_pem_x509_certificate

pytest.importorskip("gssapi", reason="missing: gssapi")

from ostiary.core.channel_binding import server_end_point
from ostiary_gateway.providers.kerberos.negotiate import read_token
from tests.support.chromium import Chromium
from tests.support.gateway import ServedGateway, Site, role
from tests.support.kdc import KRB5, PASSWORD, PROGRAMS, REALM, Kdc, running_kdc
from tests.support.ports import free_port
from tests.support.slapd import ACCOUNT, ACCOUNT_PASSWORD, GROUPS_BASE, PEOPLE_BASE, Slapd, slapd

pytestmark = [
    pytest.mark.needs(*PROGRAMS, "python-ldap", "slapd", "slapadd", "ldapmodify", "faketime"),
    pytest.mark.timeout(180),
]

NTLM = "Negotiate " + b64encode(b"NTLMSSP\0" + bytes(32)).decode()


@dataclass(frozen=True)
class Office:
    """Where the gateway stands: a KDC, a directory, and a folder of its own."""

    site: Site
    kdc: Kdc
    directory: Slapd

    def serving(
        self, *, more: list[dict[str, Any]] | None = None, require_user: bool = True, **settings: Any
    ) -> ServedGateway:
        (self.site.folder / "ldap-password").write_text(ACCOUNT_PASSWORD)
        self.site.policy(role("team", "pods", Group="developers"))
        tokens = settings.pop("tokens", {})
        staff = {
            "name": "staff",
            "type": "kerberos",
            "keytab": str(self.kdc.folder / "service.keytab"),
            "realms": [{"name": REALM}],
            # With several providers each has a prefix.
            **({"prefix": "staff:"} if more else {}),
            **settings,
        }
        teams = {
            "name": "teams",
            "type": "ldap",
            "url": self.directory.ldaps,
            "ca": str(self.directory.ca),
            "bindDN": ACCOUNT,
            "bindPasswordFile": "ldap-password",
            "userSearch": {"baseDN": PEOPLE_BASE},
            "groupSearch": {"baseDN": GROUPS_BASE},
            "requireUser": require_user,
            "identities": ["staff"],
            **({"userPrefix": "staff:"} if more else {}),
        }
        port = free_port()
        return self.site.serving(
            upstreams=[],
            listen={"address": f"127.0.0.1:{port}"},
            externalURL=f"https://localhost:{port}",
            identity=[staff, *(more or [])],
            groups=[teams],
            tokens=tokens,
            environment={"KRB5_CONFIG": self.kdc.environment["KRB5_CONFIG"], "LC_ALL": "C.UTF-8"},
        )

    @property
    def binding(self) -> bytes:
        pem = (self.site.folder / "server.pem").read_bytes()
        binding = server_end_point(load_pem_x509_certificate(pem).public_bytes(Encoding.DER))
        assert binding is not None
        return binding

    def ticket(self, name: str = "alice", host: str = "localhost", **options: Any) -> str:
        return self.kdc.negotiate(self.kdc.kinit(name), host, **options)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory, ca: trustme.CA) -> Iterator[Slapd]:
    with slapd(tmp_path_factory.mktemp("slapd"), ca) as server:
        yield server


@pytest.fixture(scope="module")
def kdc(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kdc]:
    with running_kdc(tmp_path_factory.mktemp("kdc")) as kdc:
        for name in ("alice", "bob", "carol", "dave", "erin", "stranger", "alice/admin"):
            kdc.add_person(name)
        kdc.add_service("HTTP/localhost", "HTTP/elsewhere", "HTTP/changed")
        kdc.keytab("HTTP/localhost")
        yield kdc


@pytest.fixture
def office(directory: Slapd, kdc: Kdc, tmp_path: Path, ca: trustme.CA) -> Office:
    return Office(Site(tmp_path / "gateway", ca), kdc, directory)


@pytest.fixture(scope="module")
def shared(
    directory: Slapd, kdc: Kdc, tmp_path_factory: pytest.TempPathFactory, ca: trustme.CA
) -> Iterator[tuple[Office, ServedGateway]]:
    """For tests that only ask."""
    office = Office(Site(tmp_path_factory.mktemp("shared") / "gateway", ca), kdc, directory)
    with office.serving() as gateway:
        yield office, gateway


def ask(gateway: ServedGateway, header: str, *, html: bool = False) -> httpx.Response:
    accept = {"Accept": "text/html"} if html else {}
    return gateway.get("/auth/staff", headers={"Authorization": header, **accept})


# --- signing in ---


def test_a_ticket_gets_a_token_with_the_groups_of_the_directory(shared: tuple[Office, ServedGateway]) -> None:
    """S10, S30."""
    office, gateway = shared
    first = gateway.get("/auth/staff")
    assert (first.status_code, first.headers["WWW-Authenticate"]) == (401, "Negotiate")
    header = office.ticket()
    answer = ask(gateway, header)
    assert answer.status_code == 200, answer.text
    assert (answer.json()["user"], answer.json()["groups"]) == ("alice", ["developers"])
    assert answer.headers["WWW-Authenticate"].startswith("Negotiate "), "it proves itself in turn"
    assert gateway.get("/auth/whoami", answer.json()["token"]).json()["user"] == "alice"
    assert header.partition(" ")[2] not in gateway.stderr + office.site.audit_log.read_text()


def test_kerberos_without_spnego_is_accepted_as_well(shared: tuple[Office, ServedGateway]) -> None:
    office, gateway = shared
    assert ask(gateway, office.ticket("bob", mechanism=KRB5)).json()["user"] == "bob"


@pytest.mark.needs("curl")
def test_curl_signs_in_with_negotiate(shared: tuple[Office, ServedGateway]) -> None:
    """S10."""
    office, gateway = shared
    cache = office.kdc.kinit("alice")
    ca = str(office.site.folder / "ca.pem")
    said = office.kdc.run(
        *("curl", "--silent", "--fail", "--negotiate", "--user", ":", "--cacert", ca),
        gateway.url() + "/auth/staff",
        cache=cache,
    )
    assert b'"user": "alice"' in said


def chromium_that_has_met_kerberos(folder: Path) -> Path:
    """Chromium on Linux loads the Kerberos library from its second start on, when it has seen a first challenge."""
    settings = {
        "net": {"received_http_auth_negotiate_headers": True},
        # The windows of the tests are private ones, in which tickets are not sent otherwise.
        "auth": {"ambient_auth_in_private_modes": 3},
    }
    program = folder / "chromium"
    program.write_text(
        "#!/bin/sh\n"
        'for word in "$@"; do case $word in --user-data-dir=*) profile=${word#*=} ;; esac; done\n'
        'mkdir -p "$profile"\n'
        f"""echo '{json.dumps(settings)}' >"$profile/Local State"\n"""
        'exec chromium "$@"\n'
    )
    program.chmod(0o755)
    return program


@pytest.mark.needs("chromium", "node", "npm")
def test_a_browser_with_a_ticket_is_signed_in_and_one_without_is_told_what_to_do(
    office: Office,
) -> None:
    """S10, S31."""
    users = {"name": "passwords", "type": "htpasswd", "path": "users", "prefix": "passwords:"}
    cache = office.kdc.kinit("alice")
    environment = {**office.kdc.environment, "KRB5CCNAME": cache}
    allow = "--auth-server-allowlist=localhost"
    program = str(chromium_that_has_met_kerberos(office.site.folder))
    with office.serving(more=[users]) as gateway:
        with Chromium.running(allow, program=program, environment=environment) as chromium:
            chromium.person()
            chromium.go(gateway.url() + "/auth")
            chromium.click("link", "staff")
            chromium.see("You are signed in")
            assert "alice" in chromium.text
        without = office.kdc.environment
        with Chromium.running(allow, program=program, environment=without) as chromium:
            chromium.person()
            assert chromium.go(gateway.url() + "/auth/staff") == 401
            chromium.see("Your browser sent no Kerberos ticket")
            # There is a way on to the other providers, and no page that loads itself again and again.
            chromium.click("link", "Start again")
            chromium.click("link", "passwords")
            chromium.see("Password")


# --- what is refused ---


def refused(gateway: ServedGateway, header: str, sentence: str, cause: str, *, second: str = "") -> None:
    """A program and a browser read *sentence*; *cause* is in the log, and the ticket nowhere.

    *second* is for the browser, where the first one is used up by the attempt.
    """
    answer = ask(gateway, header)
    assert (answer.status_code, "token" in answer.json()) == (403, False)
    sentence = sentence.lower()
    assert sentence in answer.json()["message"].lower()
    page = ask(gateway, second or header, html=True)
    assert (page.status_code, sentence in page.text.lower()) == (403, True)
    gateway.line(cause)
    assert header.partition(" ")[2] not in gateway.stderr


def test_a_ticket_for_another_host_is_refused(shared: tuple[Office, ServedGateway]) -> None:
    office, gateway = shared
    refused(gateway, office.ticket(host="elsewhere"), "is for another service", f"HTTP/elsewhere@{REALM}")


def test_an_expired_ticket_is_refused(shared: tuple[Office, ServedGateway]) -> None:
    office, gateway = shared
    with office.kdc.at_another_time("-2d") as earlier:
        header = earlier.negotiate(earlier.kinit("alice"), "localhost")
    refused(gateway, header, "ticket has expired: get a new one with kinit", "the ticket has expired")


def test_a_clock_that_is_wrong_is_told(shared: tuple[Office, ServedGateway]) -> None:
    office, gateway = shared
    with office.kdc.at_another_time("-20m") as earlier:
        header = earlier.negotiate(earlier.kinit("alice"), "localhost")
    refused(gateway, header, "clock of your computer", "clockskew")


def test_a_ticket_is_good_once_however_it_is_wrapped(shared: tuple[Office, ServedGateway]) -> None:
    office, gateway = shared
    header = office.ticket()
    assert ask(gateway, header).status_code == 200
    refused(gateway, header, "was used before: try again", "a replay")
    # The same authenticator, taken out of its envelope.
    inner = read_token(b64decode(header.partition(" ")[2])).mechanism_token
    refused(gateway, f"Negotiate {b64encode(inner).decode()}", "was used before: try again", "a replay")


def test_a_ticket_that_came_a_second_time_at_once_signs_in_once(shared: tuple[Office, ServedGateway]) -> None:
    """S30."""
    from concurrent.futures import ThreadPoolExecutor

    office, gateway = shared
    header = office.ticket()
    with ThreadPoolExecutor(8) as threads:
        statuses = sorted(threads.map(lambda _: ask(gateway, header).status_code, range(8)))
    assert statuses == [200, *[403] * 7]


def test_a_keytab_with_the_wrong_key_is_told_to_the_operator(office: Office) -> None:
    kdc = office.kdc
    keytab = kdc.keytab("HTTP/changed", file="old.keytab")
    kdc.change_keys("HTTP/changed")
    with office.serving(keytab=str(keytab), servicePrincipals=[f"HTTP/changed@{REALM}"]) as gateway:
        header = office.ticket(host="changed")
        refused(gateway, header, "cannot read your Kerberos ticket", "key version 2, which the keytab does not have")
        # A keytab is replaced while the gateway runs.
        kdc.keytab("HTTP/changed", file="old.keytab")
        assert ask(gateway, office.ticket(host="changed")).status_code == 200


@pytest.mark.parametrize("header", [NTLM, "Negotiate", "Negotiate !", "Negotiate YII=", "Negotiate " + "QUJD" * 4000])
def test_what_is_not_kerberos_is_refused(shared: tuple[Office, ServedGateway], header: str) -> None:
    _, gateway = shared
    answer = ask(gateway, header)
    assert answer.status_code == 403
    assert "NTLM" in answer.text or "not a Kerberos ticket" in answer.text


def test_a_password_is_not_accepted(shared: tuple[Office, ServedGateway]) -> None:
    _, gateway = shared
    answer = gateway.get("/auth/staff", auth=("alice", PASSWORD))
    assert (answer.status_code, answer.headers["WWW-Authenticate"]) == (401, "Negotiate")


def test_whoever_has_a_ticket_and_no_account_in_the_directory_is_refused(shared: tuple[Office, ServedGateway]) -> None:
    office, gateway = shared
    twice = [office.ticket("stranger") for _ in range(2)]
    refused(gateway, twice[0], "the directory does not know this user", "requireUser", second=twice[1])
    refused(gateway, office.ticket("alice/admin"), "may not sign in here", "instance")
    # Disabled there, though the KDC gives tickets.
    answer = ask(gateway, office.ticket("dave"))
    assert (answer.status_code, answer.json()["message"]) == (403, "this account is disabled or has expired")


# --- the connection ---


def test_a_bound_ticket_must_be_bound_to_this_connection(shared: tuple[Office, ServedGateway]) -> None:
    office, gateway = shared
    assert ask(gateway, office.ticket(binding=office.binding)).status_code == 200
    other = b"tls-server-end-point:" + bytes(32)
    refused(gateway, office.ticket(binding=other), "belongs to another connection", "channel binding")


def test_a_binding_can_be_required(office: Office) -> None:
    with office.serving(channelBinding="required") as gateway:
        assert ask(gateway, office.ticket(binding=office.binding)).status_code == 200
        refused(gateway, office.ticket(), "requires tickets that are bound", "channelBinding: required")


# --- withdrawn ---


def renew(gateway: ServedGateway, renewal_token: str) -> httpx.Response:
    with gateway.http() as http:
        return http.post("/auth/renew", data={"renewal_token": renewal_token})


def test_whoever_is_disabled_in_the_directory_is_out_at_the_next_renewal(office: Office) -> None:
    """S64."""
    with office.serving() as gateway:
        assert "cannot check users again" not in gateway.stderr
        renewal = ask(gateway, office.ticket("erin")).json()["renewal_token"]
        renewal = renew(gateway, renewal).json()["renewal_token"]
        start = time.monotonic()
        office.directory.disable("erin")
        answer = renew(gateway, renewal)
        print(f"out {time.monotonic() - start:.3f} s after the directory was changed, at the first renewal")
        assert answer.status_code == 401
        gateway.line("disabled or has expired")


def test_whoever_is_disabled_at_the_kdc_is_out_at_the_next_renewal(office: Office) -> None:
    """S64."""
    with office.serving(renewal="kdc", require_user=False) as gateway:
        renewal = ask(gateway, office.ticket("carol")).json()["renewal_token"]
        renewal = renew(gateway, renewal).json()["renewal_token"]
        start = time.monotonic()
        office.kdc.disable("carol")
        try:
            answer = renew(gateway, renewal)
        finally:
            office.kdc.enable("carol")
        print(f"out {time.monotonic() - start:.3f} s after the KDC was changed, at the first renewal")
        assert answer.status_code == 401
        gateway.line("the principal is disabled or locked")


def test_a_kdc_that_does_not_answer_ends_no_session(office: Office, tmp_path: Path) -> None:
    (tmp_path / "kdc").mkdir()
    with running_kdc(tmp_path / "kdc") as kdc:
        kdc.add_person("alice")
        kdc.add_service("HTTP/localhost")
        kdc.keytab("HTTP/localhost")
        passing = Office(office.site, kdc, office.directory)
        gateway = passing.serving(renewal="kdc").__enter__()
        renewal = ask(gateway, passing.ticket()).json()["renewal_token"]
    try:
        answer = renew(gateway, renewal)
        assert answer.status_code in (500, 503)
        gateway.line("the KDC could not be asked")
    finally:
        gateway.__exit__(None, None, None)


# --- the configuration ---


def test_a_keytab_without_our_principal_stops_the_start(office: Office) -> None:
    keytab = office.kdc.keytab("HTTP/elsewhere", file="elsewhere.keytab")
    config = office.site.write_config(
        externalURL="https://localhost:8443",
        identity=[{"name": "staff", "type": "kerberos", "keytab": str(keytab), "realms": [{"name": REALM}]}],
    )
    command = [sys.executable, "-m", "ostiary_gateway", "serve", "--check", "--config", str(config)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode != 0
    assert f"the keytab has no key of HTTP/localhost; it has HTTP/elsewhere@{REALM}" in done.stdout + done.stderr
