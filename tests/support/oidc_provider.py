"""The certified ``oidc-provider`` of npm as a process on loopback, and a person who signs in there without a browser.

    with OidcProvider.running(installed(), clients=[...], accounts={...}) as issuer:
        back = await issuer.sign_in(redirect.url, "alice")     # where the browser is sent in the end

``scripts/components`` installs it.
"""

from __future__ import annotations

import json
import os
import re
import ssl
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from html import unescape
from pathlib import Path
from typing import Any, Self

import httpx2

from tests.support import npm

SOURCE = Path(__file__).parent / "oidc"
HOPS = 20
_ACTION = re.compile(r'<form[^>]* action="([^"]+)"')
_HIDDEN = re.compile(r'<input type="hidden" name="([^"]+)" value="([^"]*)"')
_ABORT = re.compile(r'href="([^"]+/abort)"')


def installed() -> Path:
    """The folder with the server and its packages."""
    return npm.installed(SOURCE)


class OidcProvider:
    def __init__(self, url: str, process: subprocess.Popen[str]) -> None:
        self.url = url
        self._process = process

    def change_accounts(self, accounts: Mapping[str, Mapping[str, Any]]) -> None:
        """Other accounts, in the place of those before; one with ``disabled`` is unknown from now on."""
        self._tell(json.dumps(accounts))

    def revoke_refresh_tokens(self) -> None:
        """All that it has given."""
        self._tell("revoke")

    def _tell(self, line: str) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()
        # It may have notices of its own to print before.
        assert "changed\n" in self._process.stdout

    def job_token(self, client: str, secret: str, audience: str) -> str:
        """The token of a machine, with the claims of the account of its name."""
        form = {"grant_type": "client_credentials", "resource": audience}
        answer = httpx2.post(f"{self.url}/token", data=form, auth=(client, secret), timeout=30)
        assert answer.status_code == 200, answer.text
        return str(answer.json()["access_token"])

    @classmethod
    @contextmanager
    def running(
        cls,
        folder: Path,
        *,
        clients: Sequence[Mapping[str, Any]],
        accounts: Mapping[str, Mapping[str, Any]],
        ca: Path | None = None,
    ) -> Iterator[Self]:
        """*ca* has the authorities of the gateways that it sends logouts to."""
        command = ["node", "server.js", json.dumps({"clients": clients, "accounts": accounts})]
        environment = {**os.environ, **({} if ca is None else {"NODE_EXTRA_CA_CERTS": str(ca)})}
        with subprocess.Popen(
            command,
            cwd=folder,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        ) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            url = process.stdout.readline().strip()
            assert url, "oidc-provider does not start"
            yield cls(url, process)
            process.stdin.close()
            process.wait(30)

    async def sign_in(self, page: str, login: str) -> str:
        """Fill in the forms that follow from *page*; gives the first address that is not the issuer's."""
        return await self._walk(page, login)

    async def decline(self, page: str) -> str:
        return await self._walk(page, None)

    async def _walk(self, page: str, login: str | None) -> str:
        async with httpx2.AsyncClient(trust_env=False, timeout=30) as browser:
            response = await browser.get(page)
            for _ in range(HOPS):
                if response.is_redirect:
                    there = str(response.url.join(response.headers["location"]))
                    if not there.startswith(f"{self.url}/"):
                        return there
                    response = await browser.get(there)
                    continue
                assert response.status_code == 200, response.text
                response = await self._filled_in(browser, response.text, login)
        raise AssertionError("the issuer's pages have no end")

    async def _filled_in(self, browser: httpx2.AsyncClient, text: str, login: str | None) -> httpx2.Response:
        if login is None:
            return await browser.get(unescape(_ABORT.findall(text)[0]))
        form = _ACTION.search(text)
        assert form is not None, text
        prompt = "login" if 'name="login"' in text else "consent"
        fields = {"prompt": prompt, "login": login, "password": "any"} if prompt == "login" else {"prompt": prompt}
        return await browser.post(unescape(form[1]), data=fields)


class Person:
    """Somebody with a browser that keeps its cookies: at the issuer, and at the gateway that *verify* trusts."""

    def __init__(self, issuer: OidcProvider, login: str, verify: ssl.SSLContext) -> None:
        self._issuer, self._login = issuer, login
        headers = {"Accept": "text/html,application/xhtml+xml"}
        self.browser = httpx2.Client(verify=verify, trust_env=False, timeout=30, headers=headers)

    def visit(self, address: str) -> httpx2.Response:
        """Open *address*, go where that leads to, and fill in the forms of the issuer."""
        response = self.browser.get(address)
        for _ in range(HOPS):
            if response.is_redirect:
                response = self.browser.get(str(response.url.join(response.headers["location"])))
            elif str(response.url).startswith(f"{self._issuer.url}/") and (form := _ACTION.search(response.text)):
                response = self.browser.post(unescape(form[1]), data=self._fields(response.text))
            else:
                return response
        raise AssertionError("the pages have no end")

    def _fields(self, text: str) -> dict[str, str]:
        hidden = {name: unescape(value) for name, value in _HIDDEN.findall(text)}
        if "xsrf" in hidden:
            return {**hidden, "logout": "yes"}
        is_login = 'name="login"' in text
        return {"prompt": "login", "login": self._login, "password": "any"} if is_login else {"prompt": "consent"}

    def sign_out_at_the_issuer(self) -> None:
        """Returns when every client that wants to be told was told."""
        assert "success" in str(self.visit(f"{self._issuer.url}/session/end").url)
