"""Upstreams that are told by a JWT who the user is: what they get, and that others' are not passed on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from joserfc import jwt
from joserfc.jwk import KeySet

from ostiary_gateway.issuer.keys import KeyRing, SigningKey
from tests.support.http1 import Message
from tests.support.visitor import GATEWAY, SCRIPT
from tests.unit.ostiary_gateway.proxy.applications import BOARD, WIKI, Site, applications


def settings(folder: Path) -> dict[str, Any]:
    (folder / "key.pem").write_bytes(SigningKey.generate().pem())
    (folder / "key.pem").chmod(0o600)
    return {"issuer": {"audiences": ["prod"], "keys": {"files": ["key.pem"]}}}


async def claims(site: Site, request: Message) -> dict[str, Any]:
    """What the application reads, after it has verified the signature with the published keys."""
    issuer = site.gateway.worker.app.issuer
    assert issuer is not None
    (text,) = request.all("X-Ostiary-Assertion")
    keys: Any = await issuer.key_set()
    return dict(jwt.decode(text.decode(), KeySet.import_key_set(keys), algorithms=["ES256"]).claims)


async def test_an_application_gets_a_jwt_for_itself_and_no_other_is_passed_on(tmp_path: Path) -> None:
    async with applications(tmp_path, identity="assertion", public=["/open"], sections=settings(tmp_path)) as site:
        visitor = await site.signed_in()
        await visitor.ask(f"{WIKI}/x", *SCRIPT, "X-Ostiary-Assertion: forged", "X_Ostiary_Assertion: forged")
        told = await claims(site, site.application.requests[-1])
        assert (told["iss"], told["aud"]) == (GATEWAY, ["wiki"])
        assert told["username"] == told["sub"] != ""
        assert site.application.requests[-1].all("X_Ostiary_Assertion") == []
        first = site.application.requests[-1].all("X-Ostiary-Assertion")
        await visitor.ask(f"{WIKI}/y", *SCRIPT)
        assert site.application.requests[-1].all("X-Ostiary-Assertion") == first, "signed once for a session"
        await visitor.open(f"{BOARD}/")
        assert (await claims(site, site.application.requests[-1]))["aud"] == ["board"]
        await visitor.ask(f"{WIKI}/open", *SCRIPT, "X-Ostiary-Assertion: forged")
        assert site.application.requests[-1].all("X-Ostiary-Assertion") == []
        await visitor.ask(f"{WIKI}/x", f"Authorization: Bearer {site.gateway.token}", *SCRIPT)
        assert (await claims(site, site.application.requests[-1]))["username"] == "alice", "a program's user, too"


async def test_without_a_key_nothing_is_forwarded(tmp_path: Path) -> None:
    async with applications(tmp_path, identity="assertion", sections=settings(tmp_path)) as site:
        issuer = site.gateway.worker.app.issuer
        assert issuer is not None
        await issuer.key_set()
        issuer._keys.ring = KeyRing()
        answer = await site.visitor().ask(f"{WIKI}/x", f"Authorization: Bearer {site.gateway.token}", *SCRIPT)
        assert answer.status == 503
        assert site.application.requests == []
        assert site.gateway.seats == 0
