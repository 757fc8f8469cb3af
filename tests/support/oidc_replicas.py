"""Replicas of a gateway in processes of their own, an OpenID Connect issuer, and watches that are open at all of them.

with OidcReplicas(folder, ca, store={...}) as replicas:
    token = replicas.sign_in("sid-1")
    seconds = asyncio.run(replicas.cut_by_logout(token, "sid-1"))
"""

from __future__ import annotations

import asyncio
import itertools
import ssl
import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlencode

import trustme

from ostiary.core.clock import SYSTEM_CLOCK
from ostiary_gateway.interfaces.identity import Redirect
from ostiary_gateway.providers.oidc.logout import EVENT
from tests.support.gateway import SECONDS, ServedGateway, Site, role
from tests.support.holding_upstream import HoldingUpstream
from tests.support.issuer import Issuer, token

PODS = "/api/v1/namespaces/team/pods"
Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]
_numbers = itertools.count()


class OidcReplicas:
    """*count* replicas over the one *store*. The person is always the same; each sign-in has an id of its own."""

    def __init__(self, folder: Path, ca: trustme.CA, *, store: Mapping[str, Any], count: int = 3) -> None:
        self._folder, self._ca, self._store, self._count = folder, ca, dict(store), count
        self.issuer = Issuer(ca, SYSTEM_CLOCK)
        self.replicas: list[ServedGateway] = []
        self._trust = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        ca.configure_trust(self._trust)

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            stack.enter_context(self.issuer.running())
            upstream = stack.enter_context(HoldingUpstream())
            for number in range(self._count):
                self.replicas.append(stack.enter_context(self._serving(number, upstream)))
            self._stack = stack.pop_all()
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        self._stack.__exit__(kind, error, trace)

    def _serving(self, number: int, upstream: HoldingUpstream) -> ServedGateway:
        site = Site(self._folder / f"replica-{number}", self._ca)
        site.policy(role("team", "pods", User=self.issuer.person["sub"]))
        (site.folder / "secret").write_text(self.issuer.client_secret)
        identity = {
            "name": "acme",
            "type": "oidc",
            "issuer": self.issuer.url,
            "clientID": self.issuer.client_id,
            "clientSecretFile": "secret",
            "ca": "ca.pem",
        }
        return site.serving(
            store=self._store,
            externalURL="https://gateway.example",
            identity=[identity],
            upstreams=[{"name": "cluster", "server": upstream.url, "attributes": {"type": "kubernetes"}}],
            limits={"requestsPerSecond": 0, "failuresPerMinute": 0},
            tokens={"sessionsPerUser": 0},
        )

    def sign_in(self, session_id: str) -> str:
        """The access token of a program whose person signs in at once; the issuer calls it *session_id*."""
        self.issuer.claims["sid"] = session_id
        with self.replicas[0].http(headers=[("Accept", "application/json")]) as http:
            away = http.get("/auth").headers["Location"]
            back = self.issuer.visit(Redirect(away))
            answer = http.get(f"/auth/acme/provider?{urlencode(back.query)}")
        assert answer.status_code == 200, answer.text
        return str(answer.json()["token"])

    def logout_token(self, session_id: str) -> str:
        now = int(SYSTEM_CLOCK.now().timestamp())
        claims = {"iss": self.issuer.url, "aud": self.issuer.client_id, "iat": now, "exp": now + 120}
        claims |= {"jti": f"logout-{next(_numbers)}", "sid": session_id, "events": {EVENT: {}}}
        return token(claims, self.issuer.key, typ="logout+jwt")

    async def cut_by_logout(self, access_token: str, session_id: str, *, watches: int = 3) -> float:
        """From when the issuer sends its logout to the first replica until the last watch at any replica has ended."""
        opened = [await self._watch(replica, access_token) for replica in self.replicas for _ in range(watches)]
        form = urlencode({"logout_token": self.logout_token(session_id)})
        async with asyncio.timeout(SECONDS):
            reader, writer = await self._connect(self.replicas[0])
            head = "POST /auth/acme/logout HTTP/1.1\r\nHost: gateway.example\r\nConnection: close\r\n"
            kind = "Content-Type: application/x-www-form-urlencoded\r\n"
            began = time.perf_counter()
            writer.write(f"{head}{kind}Content-Length: {len(form)}\r\n\r\n{form}".encode())
            await asyncio.gather(*(_until_ended(watch) for watch, _ in opened))
            seconds = time.perf_counter() - began
            answer = await reader.read()
        assert answer.startswith(b"HTTP/1.1 200"), answer
        for closing in (writer, *(watch for _, watch in opened)):
            closing.close()
        return seconds

    async def _watch(self, replica: ServedGateway, access_token: str) -> Connection:
        reader, writer = await self._connect(replica)
        name = f"watch-{next(_numbers)}"
        head = f"GET {PODS}?watch=true HTTP/1.1\r\nHost: gateway.example\r\nX-Test-Id: {name}\r\n"
        writer.write(f"{head}Authorization: Bearer {access_token}\r\n\r\n".encode())
        async with asyncio.timeout(SECONDS):
            assert (await reader.readline()).startswith(b"HTTP/1.1 200")
            await reader.readuntil(b"first")
        return reader, writer

    async def _connect(self, replica: ServedGateway) -> Connection:
        return await asyncio.open_connection("127.0.0.1", replica.port, ssl=self._trust, server_hostname="localhost")


async def _until_ended(watch: asyncio.StreamReader) -> None:
    try:
        while await watch.read(65536):
            pass
    except OSError:
        # A reset is an end as well.
        pass
