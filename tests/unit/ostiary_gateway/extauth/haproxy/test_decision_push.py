"""Decisions in a HAProxy's map, as a real worker puts them there and takes them out. The HAProxy is a fake."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from ostiary_gateway.extauth.haproxy import decision_push as pusher
from ostiary_gateway.extauth.haproxy import spop
from ostiary_gateway.extauth.haproxy.decision_push import MOST_DELETES, DecisionPusher
from ostiary_gateway.interfaces.token_store import RevocationKind
from ostiary_gateway.sessions import Tokens
from tests.support.ports import free_port
from tests.support.spop_client import SECONDS, Haproxy
from tests.unit.ostiary_gateway.proxy.gateways import Gateway, ImmediatePolicy, configured, serving

DECISIONS, LEASES = "/dev/null", "/dev/./null"


@dataclass
class Maps:
    """HAProxy's runtime socket."""

    maps: dict[str, dict[str, str]] = field(default_factory=lambda: {DECISIONS: {}, LEASES: {}})
    refusal: str = ""

    @property
    def passes(self) -> dict[str, str]:
        return self.maps[DECISIONS]

    @property
    def leases(self) -> dict[str, str]:
        return self.maps[LEASES]

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for command in (await reader.readline()).decode().strip().split(";"):
            writer.write(self._do(*command.split(" ")).encode() + b"\n")
        writer.close()

    def _do(self, verb: str, _: str, name: str, key: str = "", text: str = "") -> str:
        entries = self.maps[name]
        if self.refusal:
            return self.refusal + "\n"
        match verb:
            case "show":
                return "".join(f"0x1 {key} {text}\n" for key, text in entries.items())
            case "add":
                assert key not in entries, "a key is put in twice"
                entries[key] = text
            case "set":
                if key not in entries:
                    return "entry not found.\n"
                entries[key] = text
            case "del":
                if entries.pop(key, None) is None:
                    return "Key not found.\n"
        return ""


@dataclass
class Carried:
    site: Gateway
    maps: Maps
    haproxy: Haproxy
    number: int = 0

    @property
    def pusher(self) -> DecisionPusher:
        return self.site.worker.app.doors.pushers["edge"]

    async def ask(self, target: str = "/x", **headers: str) -> dict[bytes, bytes]:
        """The variables that the answer sets."""
        lines = {"host": "shop.example", "authorization": f"Bearer {self.site.token}", **headers}
        binary = b"".join(spop.text(name.encode()) + spop.text(value.encode()) for name, value in lines.items())
        arguments = {
            b"secret": spop.string(b"secret"),
            b"method": spop.string(b"GET"),
            b"target": spop.string(target.encode()),
            b"version": spop.string(b"1.1"),
            b"headers": b"\x09" + spop.text(binary + b"\x00\x00"),
            b"address": b"\x06\x7f\x00\x00\x01",
        }
        self.number += 1
        payload = spop.text(b"ostiary-shop") + bytes((len(arguments),)) + spop.pairs(arguments)
        self.haproxy.send(spop.frame(spop.NOTIFY, 1, self.number, payload))
        _, answer = await self.haproxy.frame()
        _, at = spop.read_number(answer, 1)
        values: dict[bytes, bytes] = {}
        while at < len(answer):
            name, at = spop.read_bytes(answer, at + 3)
            value, at = spop.read_value(answer, at)
            values[name] = value if isinstance(value, bytes) else str(value).encode()
        return values


@asynccontextmanager
async def carried(folder: Path, policy: ImmediatePolicy | None = None, **decisions: Any) -> AsyncIterator[Carried]:
    (folder / "secret").write_text("secret")
    port, maps = free_port(), Maps()
    door = {
        "name": "edge",
        "proxy": "haproxy",
        "agent": {"address": f"127.0.0.1:{port}"},
        "callers": {"tokenFile": "secret"},
        "decisions": {"socket": "runtime", **decisions},
    }
    upstreams = [{"name": "shop", "attributes": "http", "hosts": ["shop.example"]}]
    server = await asyncio.start_unix_server(maps.serve, folder / "runtime")
    config = configured(folder, "", policy or ImmediatePolicy(), upstreams=upstreams, doors=[door])
    async with server, serving(config) as site:
        haproxy = Haproxy(*await asyncio.open_connection("127.0.0.1", port))
        await haproxy.greet()
        await until(lambda: bool(maps.leases))
        yield Carried(site, maps, haproxy)
        haproxy.writer.close()
    assert not maps.leases, "a gateway that stops leaves no lease behind"


async def until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(SECONDS):
        while not is_so():
            await asyncio.sleep(0.005)


async def test_what_is_allowed_is_put_into_the_map_with_its_end_and_its_lease(tmp_path: Path) -> None:
    async with carried(tmp_path, lifetime="20s") as edge:
        assert await edge.ask() == {b"good": b"True", b"pass": b"||alice|7|dev"}
        await until(lambda: bool(edge.maps.passes))
        (key, text), (lease,) = *edge.maps.passes.items(), edge.maps.leases
        assert text == f"{int(edge.site.clock.now().timestamp()) + 20}|{lease}|alice|7|dev"
        assert len(key) == 64
        assert edge.site.token not in f"{key} {text}"
        # Asked again before HAProxy knew: it is there once.
        await edge.ask()
        await edge.ask("/other")
        await until(lambda: len(edge.maps.passes) == 2)


async def test_what_must_be_asked_about_each_time_is_not_put_there(tmp_path: Path) -> None:
    async with carried(tmp_path) as edge:
        await edge.ask("/one", **{"impersonate-user": "bob"})
        await edge.ask("/two", upgrade="websocket", connection="upgrade")
        await edge.ask("/last")
        await until(lambda: bool(edge.maps.passes))
        assert len(edge.maps.passes) == 1


async def test_a_revocation_takes_out_the_decisions_of_the_token(tmp_path: Path) -> None:
    async with carried(tmp_path) as edge:
        await edge.ask("/a")
        await edge.ask("/b")
        await until(lambda: len(edge.maps.passes) == 2)
        (lease,) = edge.maps.leases
        await _revoke_alice(edge)
        await until(lambda: not edge.maps.passes)
        assert list(edge.maps.leases) == [lease]
        assert (await edge.ask("/a"))[b"status"] == b"401"


async def test_when_many_are_revoked_together_the_lease_ends(tmp_path: Path) -> None:
    async with carried(tmp_path) as edge:
        for number in range(MOST_DELETES + 1):
            await edge.ask(f"/{number}")
        await until(lambda: len(edge.maps.passes) == MOST_DELETES + 1)
        (lease,) = edge.maps.leases
        await _revoke_alice(edge)
        await until(lambda: bool(edge.maps.leases) and lease not in edge.maps.leases)


async def test_a_change_of_the_policy_makes_all_decisions_void(tmp_path: Path) -> None:
    policy = ImmediatePolicy()
    async with carried(tmp_path, policy) as edge:
        await edge.ask()
        await until(lambda: bool(edge.maps.passes))
        (lease,) = edge.maps.leases
        policy.revision += 1
        await until(lambda: bool(edge.maps.leases) and lease not in edge.maps.leases)


async def test_a_lease_ends_with_what_is_known_of_revocations(tmp_path: Path) -> None:
    async with carried(tmp_path) as edge:
        clock, pusher = edge.site.clock, edge.pusher
        until_then = edge.site.worker.app.shared.authenticator.feed.fresh_until
        end = int(pusher._renewal(clock.monotonic()).split()[-1])
        assert end <= clock.now().timestamp() + (until_then - clock.monotonic())
        edge.site.store.down = True
        clock.advance(until_then - clock.monotonic() - 0.5)
        assert pusher._renewal(clock.monotonic()) == ""


async def test_a_haproxy_that_refuses_or_was_restarted_is_begun_with_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pusher, "RETRY_SECONDS", 0.01)
    async with carried(tmp_path) as edge:
        await edge.ask()
        await until(lambda: bool(edge.maps.passes))
        (lease,) = edge.maps.leases
        # Restarted: its maps are empty.
        edge.maps.leases.clear()
        edge.maps.passes.clear()
        edge.site.clock.advance(1.5)
        await until(lambda: bool(edge.maps.leases))
        assert lease not in edge.maps.leases
        (lease,) = edge.maps.leases
        edge.maps.refusal = "Permission denied"
        edge.site.clock.advance(1.5)
        await until(lambda: edge.site.count("door_decisions_total", "failed") >= 2)
        edge.maps.refusal = ""
        await until(lambda: bool(edge.maps.leases) and lease not in edge.maps.leases)
        await edge.ask("/after")
        await until(lambda: bool(edge.maps.passes))


async def test_one_users_decisions_make_room_for_that_users_own(tmp_path: Path) -> None:
    async with carried(tmp_path, entries=50) as edge:
        for number in range(12):
            await edge.ask(f"/{number}")
        # What is no longer held is taken out at once, since no revocation would find it.
        await until(lambda: len(edge.maps.passes) == 5)
        assert len(edge.pusher.held) == 5
        await _revoke_alice(edge)
        await until(lambda: not edge.maps.passes)


async def test_a_decision_of_a_policy_that_has_changed_meanwhile_is_not_put_there(tmp_path: Path) -> None:
    policy = ImmediatePolicy()
    async with carried(tmp_path, policy) as edge:
        # The pusher has not looked at the policy since.
        edge.pusher._seen_generation -= 1
        await edge.ask("/before")
        assert not edge.pusher.held
        await until(lambda: edge.pusher._generation() == edge.pusher._seen_generation)
        await edge.ask("/after")
        await until(lambda: len(edge.maps.passes) == 1)


async def _revoke_alice(edge: Carried) -> None:
    tokens: Tokens = edge.site.worker.app.shared.tokens
    await tokens.revoke(RevocationKind.USER, "alice")
    await edge.site.worker.app.shared.authenticator.feed.confirm()
