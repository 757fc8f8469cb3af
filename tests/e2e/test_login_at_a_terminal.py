"""Signing in at a real terminal: what is asked there, what is shown there, and that no password is."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import trustme

from tests.support.signin_server import Browser, SigninServer
from tests.support.terminal import SECONDS, AtTerminal

PASSWORD = [{"name": "staff", "kind": "password"}]


def at_terminal(*words: str, **env: str) -> AtTerminal:
    return AtTerminal([sys.executable, "-m", "ostiary", *words], {**os.environ, **env})


@pytest.fixture
def server(ca: trustme.CA) -> Iterator[SigninServer]:
    with SigninServer(ca).running() as running:
        running.methods = PASSWORD
        yield running


@pytest.fixture
def authority(ca: trustme.CA, tmp_path: Path) -> str:
    ca.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    return str(tmp_path / "ca.pem")


def test_a_password_is_asked_for_at_the_terminal_and_not_echoed(server: SigninServer, authority: str) -> None:
    person = at_terminal("get-token", "--server", server.url, "--ca", authority, "--account", "ann")
    person.read_until(f"username at {server.url} [ann]: ")
    person.type("\n")
    person.read_until("password: ")
    person.type("pässword\n")
    code, said = person.end()
    assert code == 0, person.shown
    assert json.loads(said)["status"]["token"] in server.tokens
    assert "pässword" not in person.shown
    assert not any(token in person.shown for token in server.tokens)


def test_after_a_wrong_password_only_the_password_is_typed_again(server: SigninServer, authority: str) -> None:
    person = at_terminal("login", "--server", server.url, "--ca", authority)
    person.read_until("username at")
    person.type("ann\n")
    person.read_until("password: ")
    person.type("wrong\n")
    person.read_until(f"username at {server.url} [ann]: ")
    person.type("\n")
    person.read_until("[ann]: \r\npassword: ")
    person.type("pässword\n")
    code, _ = person.end()
    assert code == 0, person.shown
    assert f"signed in at {server.url} as ann" in person.shown


def test_ctrl_c_at_the_password_ends_it_quietly(server: SigninServer, authority: str) -> None:
    person = at_terminal("get-token", "--server", server.url, "--ca", authority)
    person.read_until("username at")
    person.type("ann\n")
    person.read_until("password: ")
    person.type("\x03")
    code, said = person.end()
    assert (code, said) == (130, "")
    assert "Traceback" not in person.shown


def test_at_a_terminal_the_address_is_shown_too(
    server: SigninServer, authority: str, ca: trustme.CA, tmp_path: Path
) -> None:
    server.methods = [{"name": "corp", "kind": "redirect"}]
    browser = Browser(tmp_path / "browser", ca)
    person = at_terminal("get-token", "--server", server.url, "--ca", authority, BROWSER=str(browser.path))
    person.read_until("/auth/cli?challenge=")
    code, said = person.end()
    assert code == 0, person.shown
    assert json.loads(said)["status"]["token"] in server.tokens
    assert len(browser.tabs) == 1


def test_with_no_browser_the_person_opens_the_address(
    server: SigninServer, authority: str, ca: trustme.CA, tmp_path: Path
) -> None:
    server.methods = [{"name": "corp", "kind": "redirect"}, *PASSWORD]
    browser = Browser(tmp_path / "browser", ca)
    words = ["login", "--server", server.url, "--ca", authority, "--no-browser"]
    person = at_terminal(*words, BROWSER=str(browser.path))
    person.read_until("client=ostiary")
    person.read_until("\n")
    address = next(line for line in person.shown.split() if line.startswith(server.url + "/auth/cli"))
    assert "provider=" not in address, "several: the page lets the person choose"
    assert browser.tabs == []
    subprocess.run([browser.path, address], stdout=subprocess.DEVNULL, timeout=SECONDS)
    code, _ = person.end()
    assert code == 0, person.shown
    assert "signed in" in person.shown
