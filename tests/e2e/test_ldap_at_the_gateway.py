"""Passwords of a real directory at a real gateway's ``/auth/<name>``, as programs and as browsers send them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import httpx
import pytest
import trustme

from tests.support.gateway import ServedGateway, Site, role
from tests.support.ports import free_port
from tests.support.slapd import ACCOUNT_PASSWORD, PASSWORD, Slapd, slapd

pytestmark = pytest.mark.needs("python-ldap", "slapd", "slapadd")

ATTEMPTS = 3
WRONG = "not-the-password"
# Each has a meaning in a filter, in a name of an entry, in Basic, or in a form.
ODD_NAMES = [
    "*",
    "a*",
    ")(uid=*",
    "alice)(uid=*",
    "*)(|(uid=*",
    "alice,ou=people",
    "alice\\2a",
    "alice&password=x",
    "%00",
]
_NONCE = re.compile(r"""nonce(-[\w-]+|="[^"]+")""")


@dataclass(frozen=True)
class Door:
    gateway: ServedGateway
    directory: Slapd

    def by_basic(self, name: str, password: str) -> httpx.Response:
        return self.gateway.get("/auth/staff", auth=(name.encode(), password.encode()))

    def by_form(self, name: str, password: str) -> httpx.Response:
        with self.gateway.http() as http:
            return http.post("/auth/staff", data={"username": name, "password": password})

    def by_page(self, name: str, password: str) -> httpx.Response:
        """As a browser does, with the form of the page."""
        headers = {"Accept": "text/html", "Origin": self.gateway.url()}
        with self.gateway.http() as http:
            return http.post("/auth/staff", data={"username": name, "password": password}, headers=headers)


Way = Callable[[Door, str, str], httpx.Response]
by_program = pytest.mark.parametrize("way", [Door.by_basic, Door.by_form])
each_way = pytest.mark.parametrize("way", [Door.by_basic, Door.by_form, Door.by_page])


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory, ca: trustme.CA) -> Iterator[Slapd]:
    with slapd(tmp_path_factory.mktemp("slapd"), ca) as server:
        yield server


@pytest.fixture
def door(directory: Slapd, tmp_path_factory: pytest.TempPathFactory, ca: trustme.CA) -> Iterator[Door]:
    """A gateway for each test: they all come from one address, and would lock each other out."""
    site = Site(tmp_path_factory.mktemp("gateway"), ca)
    site.policy(role("team", "pods", Group="developers"))
    (site.folder / "ldap-password").write_text(ACCOUNT_PASSWORD)
    staff = {**directory.identity("ldap-password"), "lockout": {"attempts": ATTEMPTS}}
    # Forms are taken from the address that people see, which must be known before the gateway starts.
    port = free_port()
    with site.serving(
        upstreams=[],
        listen={"address": f"127.0.0.1:{port}"},
        externalURL=f"https://localhost:{port}",
        identity=[staff],
        groups=[{"name": "teams", "provider": "staff"}],
    ) as gateway:
        yield Door(gateway, directory)


@by_program
def test_the_right_password_gets_a_token_with_the_groups_that_matter(door: Door, way: Way) -> None:
    """S28, S31, S36."""
    answer = way(door, "alice", PASSWORD)
    assert answer.status_code == 200, answer.text
    said = answer.json()
    assert (said["user"], said["groups"]) == ("alice", ["developers"])
    assert door.gateway.get("/auth/whoami", said["token"]).json()["user"] == "alice"
    _nothing_got_out(door, said["token"], said["renewal_token"])


def test_the_page_leads_to_the_token_page(door: Door) -> None:
    """S18, S31."""
    answer = door.by_page("alice", PASSWORD)
    assert (answer.status_code, answer.headers["Location"]) == (303, "/auth/token")
    assert "__Host-ostiary-session" in answer.headers["Set-Cookie"]
    _nothing_got_out(door)


@each_way
def test_wrong_names_and_passwords_look_the_same(door: Door, way: Way) -> None:
    """L8, L9."""
    wrong, unknown, empty = way(door, "alice", WRONG), way(door, "nobody", PASSWORD), way(door, "alice", "")
    assert [answer.status_code for answer in (wrong, unknown)] == [401, 401]
    assert _without_what_differs(wrong) == _without_what_differs(unknown)
    assert "Set-Cookie" not in wrong.headers
    # Not even sent: a directory takes it for an anonymous visit, and says yes.
    assert empty.status_code in (200, 401)
    assert not _is_signed_in(empty)
    _nothing_got_out(door)


@each_way
def test_who_guesses_is_locked_out_under_every_spelling_of_the_name(door: Door, way: Way) -> None:
    """L9."""
    assert [way(door, name, WRONG).status_code for name in ("alice", "Alice", " alice ")] == [401] * ATTEMPTS
    binds = door.directory.asked().count(" BIND ")
    for name in ("alice", "ALICE"):
        locked = way(door, name, PASSWORD)
        assert locked.status_code == 429
        assert int(locked.headers["Retry-After"]) > 60
        assert "too many failed attempts" in locked.text.lower()
    assert door.directory.asked().count(" BIND ") == binds, "nobody asks the directory while somebody is locked out"
    assert _is_signed_in(way(door, "bob", PASSWORD))
    _nothing_got_out(door)


@each_way
def test_characters_with_a_meaning_are_characters_like_any_other(door: Door, way: Way) -> None:
    """L8, S14."""
    for name in ODD_NAMES:
        refused = way(door, name, PASSWORD)
        assert refused.status_code == 401, name
        assert not _is_signed_in(refused)
    right = way(door, "o'neil, (jr)*", PASSWORD)
    assert _is_signed_in(right)
    issued = door.gateway.line("login issued")
    assert "user o'neil, (jr)*" in issued
    assert door.gateway.stderr.count("login issued") == 1
    _nothing_got_out(door)


def _is_signed_in(answer: httpx.Response) -> bool:
    """As a program, or as a browser."""
    return "ost_" in answer.text or "session=" in answer.headers.get("Set-Cookie", "")


def _without_what_differs(answer: httpx.Response) -> tuple[dict[str, str], str]:
    """Headers and text, but for time, id, nonce, and the name that was typed, which the page repeats."""
    own = ("date", "content-length", "audit-id")
    headers = {name: _NONCE.sub("", value) for name, value in answer.headers.items() if name not in own}
    return headers, _NONCE.sub("", answer.text).replace("nobody", "alice")


def _nothing_got_out(door: Door, *tokens: str) -> None:
    places = door.gateway.stderr + door.gateway.site.audit_log.read_text()
    for secret in (PASSWORD, WRONG, ACCOUNT_PASSWORD, *tokens):
        assert secret not in places
