"""An allowed request on its way to the upstream: the head that is sent, the credential, bodies, ends and failures."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from ostiary_gateway.interfaces.token_store import RevocationKind
from ostiary_gateway.issuer.keys import SigningKey
from ostiary_gateway.wire.action_token import LONGEST_URL, PARAMETER
from tests.support.http1 import Upstreamed, chunked, connected, get, until, upstream
from tests.unit.ostiary_gateway.proxy.gateways import at, configured, cut, endless, kubernetes, opened, serving, silent

NOWHERE = "http://127.0.0.1:1"
PROOF = PARAMETER.encode()


# --- the head ---


async def test_the_upstream_and_the_client_are_told_the_same_id_and_the_record_has_it(tmp_path: Path) -> None:
    async with upstream() as made, serving(configured(tmp_path, at(made))) as site:
        answers = [await site.ask() for _ in range(3)]
        ids = [answer.one("Audit-Id") for answer in answers]
        assert ids == [request.one("Audit-Id") for request in made.requests]
        assert len(set(ids)) == 3
        assert [event["auditID"].encode() for event in await site.events()] == ids


async def test_framing_is_written_anew(tmp_path: Path) -> None:
    async with upstream() as made, serving(configured(tmp_path, at(made))) as site:
        assert (await site.ask()).body == b""
        assert (await site.ask(method="POST", body=b"hello")).body == b"hello"
        data = site.request("/x", "Transfer-Encoding: chunked", method="POST") + chunked(b"hel", b"lo")
        assert (await site.client.ask(data)).body == b"hello"
        plain, sized, in_chunks = made.requests
        assert (plain.one("Content-Length"), plain.one("Transfer-Encoding")) == (None, None)
        assert (sized.one("Content-Length"), sized.one("Transfer-Encoding")) == (b"5", None)
        assert (in_chunks.one("Content-Length"), in_chunks.one("Transfer-Encoding")) == (None, b"chunked")
        assert {request.one("Upgrade") for request in made.requests} == {None}


@pytest.mark.parametrize(("asked", "sent"), [("websocket", b"websocket"), ("SPDY/3.1", b"SPDY/3.1")])
async def test_a_switch_of_protocols_is_named_as_it_is_spelled(tmp_path: Path, asked: str, sent: bytes) -> None:
    async with upstream() as made, serving(configured(tmp_path, at(made))) as site:
        site.client.send(site.request("/x", "Connection: Upgrade", f"Upgrade: {asked}"))
        await until(lambda: bool(made.requests))
        (request,) = made.requests
        assert (request.one("Connection"), request.one("Upgrade")) == (b"Upgrade", sent)


async def test_the_clients_token_goes_no_further(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("gateway-token")
    async with upstream() as made:
        upstreams = [{**kubernetes(at(made))[0], "tokenFile": "token"}]
        async with serving(configured(tmp_path, at(made), upstreams=upstreams)) as site:
            for _ in range(3):
                assert (await site.ask("/api")).status == 200
            assert [request.all("Authorization") for request in made.requests] == [[b"Bearer gateway-token"]] * 3
        assert all(site.token.encode() not in connection.raw for connection in made.connections)


# --- redirects to the backend ---


async def test_reads_of_listed_paths_are_redirected_with_a_proof_and_all_else_is_forwarded(tmp_path: Path) -> None:
    (tmp_path / "key.pem").write_bytes(SigningKey.generate().pem())
    (tmp_path / "key.pem").chmod(0o600)
    sections: dict[str, Any] = {
        "externalURL": "https://gateway.test",
        "issuer": {"audiences": ["prod"], "keys": {"files": ["key.pem"]}},
    }
    async with upstream() as made:
        redirect = {"to": "https://files.test", "paths": ["/download/"]}
        files = {"name": "files", "server": at(made), "attributes": "http", "redirect": redirect}
        async with serving(configured(tmp_path, at(made), **sections, upstreams=[files])) as site:
            for _ in range(3):
                answer = await site.ask("/download/a?b=1")
                assert answer.status == 307
                assert (answer.one("Location") or b"").startswith(b"https://files.test/download/a?b=1&" + PROOF + b"=")
                assert answer.one("Cache-Control") == b"no-store"
                assert answer.one("Referrer-Policy") == b"no-referrer"
            assert made.requests == []
            assert site.count("requests_total", "get", "307", "files") == 3
            ends = [event["responseStatus"] for event in await site.events()]
            assert [(end["code"], end["message"]) for end in ends] == [(307, "redirected to https://files.test")] * 3
            assert site.seats == 0
            long_url = "/download/" + "a" * LONGEST_URL
            for target, lines, more in (
                ("/upload/a", (), {}),
                ("/download/a", ("Impersonate-User: bob",), {}),
                ("/download/a", (), {"body": b"hello"}),
                (long_url, (), {}),
            ):
                assert (await site.ask(target, *lines, **more)).status == 200
            assert len(made.requests) == 4


# --- the gateway's own credential ---


async def test_without_a_credential_of_our_own_nothing_is_sent_and_the_client_is_not_to_blame(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("gateway-token")
    async with upstream() as made:
        upstreams = [{**kubernetes(at(made))[0], "tokenFile": "token"}]
        async with serving(configured(tmp_path, at(made), upstreams=upstreams)) as site:
            (tmp_path / "token").unlink()
            site.clock.advance(120)
            answer = await site.ask("/api")
            assert answer.status == 503
            assert site.count("upstream_errors_total", "k") == 1
            assert site.count("requests_total", "503", "k") == 1
            ended = site.ended(answer)
            assert ended is not None
            assert ended.reason == "the upstream rejects the gateway's own credential"
            assert site.seats == 0
            (event,) = await site.events()
            assert event["responseStatus"]["code"] == 503
        assert made.requests == []


async def test_a_credential_that_the_upstream_rejects_is_not_the_clients(tmp_path: Path) -> None:
    async def rejects(connection: Upstreamed) -> None:
        body = b'{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Unauthorized","code":401}'
        while True:
            connection.upstream.requests.append(await connection.request())
            head = b"HTTP/1.1 401 Unauthorized\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
            connection.send(head % len(body) + body)

    (tmp_path / "token").write_text("gateway-token")
    async with upstream(rejects) as made:
        upstreams = [{**kubernetes(at(made))[0], "tokenFile": "token"}]
        async with serving(configured(tmp_path, at(made), upstreams=upstreams)) as site:
            answer = await site.ask("/api")
            assert answer.status == 503
            assert answer.one("WWW-Authenticate") is None
            ended = site.ended(answer)
            assert ended is not None
            assert ended.reason == "the upstream rejects the gateway's own credential"
        async with serving(configured(tmp_path, at(made))) as site:
            assert (await site.ask("/api")).status == 401, "an upstream that does not know us speaks about the client"


@pytest.mark.parametrize(("path", "status"), [("/api/v1/pods", 503), ("/api/v1/namespaces/x/pods/p/proxy/", 401)])
async def test_a_program_behind_the_proxy_of_a_pod_may_ask_the_client_for_a_password(
    tmp_path: Path, path: str, status: int
) -> None:
    async def asks(connection: Upstreamed) -> None:
        while True:
            connection.upstream.requests.append(await connection.request())
            connection.send(b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 4\r\n\r\nwho?")

    (tmp_path / "token").write_text("gateway-token")
    async with upstream(asks) as made:
        upstreams = [{**kubernetes(at(made))[0], "tokenFile": "token"}]
        async with serving(configured(tmp_path, at(made), upstreams=upstreams)) as site:
            assert (await site.ask(path)).status == status


@pytest.mark.parametrize(
    "rest",
    [
        b"Content-Length: 4\r\n\r\nwho?",
        b"Transfer-Encoding: chunked\r\n\r\n4\r\nwho?\r\n0\r\n\r\n",
        b"Content-Length: 40000\r\n\r\n" + b"?" * 40_000,
    ],
    ids=["whole", "held back", "too long to be held back"],
)
async def test_its_answer_begins_and_ends_in_the_record_however_it_came(tmp_path: Path, rest: bytes) -> None:
    async def asks(connection: Upstreamed) -> None:
        while True:
            connection.upstream.requests.append(await connection.request())
            connection.send(b"HTTP/1.1 401 Unauthorized\r\n" + rest)

    (tmp_path / "token").write_text("gateway-token")
    async with upstream(asks) as made:
        upstreams = [{**kubernetes(at(made))[0], "tokenFile": "token"}]
        async with serving(configured(tmp_path, at(made), upstreams=upstreams)) as site:
            for _ in range(2):
                assert (await site.ask("/api/v1/namespaces/x/pods/p/proxy/")).status == 401
            stages = [event["stage"] for event in await site.events()]
            assert stages == ["ResponseStarted", "ResponseComplete"] * 2


# --- ends ---


async def test_an_upstream_that_answers_again_is_available_again(tmp_path: Path) -> None:
    fails = True

    async def sometimes(connection: Upstreamed) -> None:
        while True:
            await connection.request()
            if fails:
                connection.reset()
                return
            connection.send(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")

    async with upstream(sometimes) as made, serving(configured(tmp_path, at(made))) as site:
        (server,) = site.worker.app.routes.upstreams
        assert (await site.ask(method="POST", body=b"x")).status == 502
        assert server.failures
        assert site.count("requests_total", "post", "502", "api") == 1
        fails = False
        assert (await site.ask()).status == 200
        assert not server.failures


async def test_a_request_takes_a_seat_for_as_long_as_it_lasts(tmp_path: Path) -> None:
    async with upstream(silent) as made, serving(configured(tmp_path, at(made))) as site:
        async with connected(site.port) as client:
            client.send(site.request())
            await until(lambda: bool(made.requests))
            assert (site.seats, site.streams) == (1, 0)
            assert site.worker.app.engine.busy
            assert site.worker.app.shared.authenticator.open_streams == 1
        await until(lambda: site.seats == 0)
        assert site.worker.app.shared.authenticator.open_streams == 0
        assert not site.worker.app.engine.busy


async def test_a_watch_takes_a_stream_and_its_beginning_is_recorded(tmp_path: Path) -> None:
    async with upstream(endless) as made:
        config = configured(tmp_path, at(made), upstreams=kubernetes(at(made)))
        async with serving(config) as site:
            async with opened(site, "/api/v1/pods?watch=1"):
                assert (site.seats, site.streams) == (0, 1)
                assert [event["stage"] for event in await site.events()] == ["ResponseStarted"]
            await until(lambda: site.streams == 0)
            assert not site.worker.app.engine.busy
            stages = [event["stage"] for event in await site.events()]
            assert stages == ["ResponseStarted", "ResponseComplete"]


async def test_an_answer_that_takes_too_long_to_begin_is_given_up_unless_it_is_a_stream(tmp_path: Path) -> None:
    async with upstream(silent) as made:
        upstreams = [{**kubernetes(at(made))[0], "timeouts": {"response": "100ms"}}]
        async with serving(configured(tmp_path, at(made), upstreams=upstreams)) as site:
            site.client.send(site.request("/api/v1/pods"))
            async with connected(site.port) as watching:
                watching.send(site.request("/api/v1/pods?watch=1"))
                await until(lambda: len(made.requests) == 2)
                answer = await site.client.answer()
                assert answer.status == 504
                assert site.streams == 1
                ended = site.ended(answer)
                assert ended is not None
                assert ended.reason == "the upstream could not be asked"


# --- the record ---


def audit_at(level: str, folder: Path, **more: object) -> dict[str, object]:
    rule = {"level": level, **more}
    policy = {"apiVersion": "audit.k8s.io/v1", "kind": "Policy", "rules": [rule]}
    (folder / "policy.yaml").write_text(json.dumps(policy))
    return {"policy": "policy.yaml", "log": {"path": "audit.log"}}


@pytest.mark.parametrize("level", ["None", "Metadata", "Request", "RequestResponse"])
async def test_the_bodies_that_the_audit_policy_wants_are_recorded(tmp_path: Path, level: str) -> None:
    async with upstream() as made:
        config = configured(tmp_path, at(made), audit=audit_at(level, tmp_path, omitStages=["RequestReceived"]))
        async with serving(config) as site:
            for _ in range(2):
                body = b'{"a":1}'
                answer = await site.ask("/x", "Content-Type: application/json", method="POST", body=body)
                assert (answer.status, answer.body) == (200, body)
            events = await site.events()
            assert len(events) == (0 if level == "None" else 2)
            for event in events:
                assert ("requestObject" in event) == (level in ("Request", "RequestResponse"))
                assert ("responseObject" in event) == (level == "RequestResponse")


async def test_a_watch_that_the_audit_policy_leaves_out_is_served_and_recorded_nowhere(tmp_path: Path) -> None:
    async with upstream(endless) as made:
        audit = audit_at("None", tmp_path)
        config = configured(tmp_path, at(made), audit=audit, upstreams=kubernetes(at(made)))
        async with serving(config) as site:
            async with opened(site, "/api/v1/pods?watch=1"):
                assert site.streams == 1
            await until(lambda: site.streams == 0)
            assert await site.events() == []
            assert site.count("requests_total", "watch", "200") == 1


async def test_the_receipt_of_a_request_is_recorded_before_it_is_sent_on(tmp_path: Path) -> None:
    async with upstream(silent) as made:
        config = configured(tmp_path, at(made), audit=audit_at("Metadata", tmp_path))
        async with serving(config) as site:
            site.client.send(site.request())
            await until(lambda: bool(made.requests))
            assert [event["stage"] for event in await site.events()] == ["RequestReceived"]


async def test_what_the_audit_policy_leaves_out_is_counted_all_the_same(tmp_path: Path) -> None:
    audit = audit_at("None", tmp_path)
    async with upstream() as made, serving(configured(tmp_path, at(made), audit=audit)) as site:
        assert (await site.ask()).status == 200
        assert (await site.client.ask(get("/x"))).status == 401
        assert await site.events() == []
        assert site.count("requests_total", "200", "api") == 1
        assert site.count("requests_total", "401") == 1


@pytest.mark.parametrize("trusted", [True, False])
async def test_the_record_says_where_a_request_comes_from(tmp_path: Path, trusted: bool) -> None:
    """What a proxy tells is believed only from a proxy that is trusted."""
    listen = {"address": "127.0.0.1:0", **({"trustedProxies": ["127.0.0.1"]} if trusted else {})}
    config = configured(tmp_path, NOWHERE, listen=listen, insecureAllowAll=True)
    async with upstream() as made, serving(replace(config, upstreams=configured(tmp_path, at(made)).upstreams)) as site:
        for _ in range(3):
            await site.ask("/x", "X-Forwarded-For: 192.0.2.7", "User-Agent: kubectl/1")
        await site.ask("/x", "User-Agent: other/2")
        events = await site.events()
        ips = ["192.0.2.7", "127.0.0.1"] if trusted else ["127.0.0.1"]
        assert [event["sourceIPs"] for event in events] == [ips] * 3 + [["127.0.0.1"]]
        assert [event["userAgent"] for event in events] == ["kubectl/1"] * 3 + ["other/2"]


async def test_requests_of_two_connections_are_recorded_with_their_own_addresses(tmp_path: Path) -> None:
    async with upstream() as made, serving(configured(tmp_path, at(made))) as site:
        for _ in range(3):
            await site.ask()
        reader, writer = await asyncio.open_connection("127.0.0.1", site.port, local_addr=("127.0.0.2", 0))
        writer.write(site.request())
        await reader.readuntil(b"\r\n\r\n")
        writer.close()
        for _ in range(2):
            await site.ask()
        addresses = [event["sourceIPs"] for event in await site.events()]
        assert addresses == [["127.0.0.1"]] * 3 + [["127.0.0.2"]] + [["127.0.0.1"]] * 2


async def test_how_long_a_request_took_is_measured(tmp_path: Path) -> None:
    release = asyncio.Event()

    async def held(connection: Upstreamed) -> None:
        connection.upstream.requests.append(await connection.request())
        await release.wait()
        connection.send(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")

    async with upstream(held) as made, serving(configured(tmp_path, at(made))) as site:
        site.client.send(site.request())
        await until(lambda: bool(made.requests))
        site.clock.advance(3)
        release.set()
        assert (await site.client.answer()).status == 200
        (event,) = await site.events()
        assert event["requestReceivedTimestamp"][:19] < event["stageTimestamp"][:19]
        series = site.worker.snapshot()["ostiary_gateway_request_duration_seconds"]["series"]
        assert sum(cast(list[float], values)[-1] for _, values in series) == pytest.approx(3)


async def test_a_stream_is_cut_when_its_token_is_revoked(tmp_path: Path) -> None:
    async with upstream(endless) as made, serving(configured(tmp_path, at(made))) as site, opened(site) as client:
        await site.worker.app.shared.tokens.revoke(RevocationKind.USER, "alice")
        await cut(client)
        await until(lambda: site.seats == 0)
