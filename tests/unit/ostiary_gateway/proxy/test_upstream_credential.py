"""The gateway's own credential at an upstream: what fails there is never a user's 401."""

from __future__ import annotations

import json
import logging
import os
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trustme

from ostiary_gateway.proxy.health import check_credential, check_health
from tests.support.http1 import Script, Upstreamed, chunked, get, until, upstream
from tests.support.http_server import server_context
from tests.unit.ostiary_gateway.proxy.test_engine import Served, at, configured, served

STATUS = b'{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Unauthorized","code":401}\n'
UNAUTHORIZED = b"HTTP/1.1 401 Unauthorized\r\nContent-Type: application/json\r\nWWW-Authenticate: Bearer\r\n"
WHOLE = UNAUTHORIZED + b"Content-Length: %d\r\n\r\n%s" % (len(STATUS), STATUS)
IN_CHUNKS = UNAUTHORIZED + b"Transfer-Encoding: chunked\r\n\r\n" + chunked(STATUS)
UNTIL_CLOSE = UNAUTHORIZED + b"Connection: close\r\n\r\n" + STATUS
POD = "/api/v1/namespaces/team/pods/web"
BEHIND_A_POD = f"{POD}/proxy/login"


def knows(token: Callable[[], str], rejection: bytes = WHOLE, answer: bytes = b"hi") -> Script:
    """An upstream that looks at the gateway's token before anything else."""

    async def script(connection: Upstreamed) -> None:
        while True:
            request = await connection.request()
            connection.upstream.requests.append(request)
            if request.all("Authorization") == [b"Bearer " + token().encode()]:
                connection.send(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(answer), answer))
            else:
                connection.send(rejection)
                if b"Connection: close" in rejection:
                    return

    return script


def says(answer: bytes) -> Script:
    async def script(connection: Upstreamed) -> None:
        while True:
            connection.upstream.requests.append(await connection.request())
            connection.send(answer)

    return script


def kubernetes(folder: Path, server: str, **more: Any) -> Any:
    return configured(folder, server, upstreams=[{"name": "cluster", "server": server, **credential(folder), **more}])


def credential(folder: Path, token: str = "first") -> dict[str, Any]:
    write(folder / "token", token)
    return {"attributes": "kubernetes", "identity": "impersonation", "tokenFile": "token"}


def write(path: Path, text: str) -> None:
    new = path.with_suffix(".new")
    new.write_text(text)
    os.replace(new, path)


async def is_ready(site: Served) -> bool:
    return (await site.worker.report()).ready


def errors_of(site: Served, kind: str) -> float:
    return site.worker.app.shared.metrics.upstream_errors.values.get(("cluster", kind), 0)


async def test_a_rejected_credential_of_ours_is_a_503_that_does_not_blame_the_user(
    tmp_path_factory: pytest.TempPathFactory, subtests: pytest.Subtests, caplog: pytest.LogCaptureFixture
) -> None:
    for case, rejection in [("whole", WHOLE), ("chunked", IN_CHUNKS), ("until close", UNTIL_CLOSE)]:
        for request_ in [POD, f"{POD}?watch=true", f"{POD}/log?follow=true", BEHIND_A_POD, "/version"]:
            with subtests.test(case, request_=request_):
                tmp_path = tmp_path_factory.mktemp("case")
                caplog.clear()
                caplog.set_level(logging.INFO, "ostiary.gateway")
                async with (
                    upstream(knows(lambda: "another", rejection)) as made,
                    served(kubernetes(tmp_path, at(made))) as site,
                ):
                    answer = await site.client.ask(site.request(request_))
                    said = json.loads(answer.body)
                    assert (answer.status, said["reason"], said["code"]) == (503, "ServiceUnavailable", 503)
                    assert "the gateway cannot authenticate itself" in said["message"]
                    assert answer.all("WWW-Authenticate") == []
                    assert errors_of(site, "credential") == 1
                    (line,) = [line for line in caplog.records if line.levelno == logging.ERROR]
                    assert (line.upstream, line.cause) == ("cluster", "it rejects the gateway's own credential")  # type: ignore[attr-defined]
                    # The answer of a program behind a pod proves nothing about the API server.
                    assert await is_ready(site) is (request_ == BEHIND_A_POD)


@pytest.mark.parametrize("upgrade", ["websocket", "SPDY/3.1"])
async def test_so_it_is_for_a_request_to_switch_protocols(tmp_path: Path, upgrade: str) -> None:
    async with upstream(knows(lambda: "another")) as made, served(kubernetes(tmp_path, at(made))) as site:
        lines = ("Connection: Upgrade", f"Upgrade: {upgrade}", "Sec-WebSocket-Protocol: v5.channel.k8s.io")
        assert (await site.client.ask(site.request(f"{POD}/exec?command=sh", *lines))).status == 503


@pytest.mark.parametrize(
    "request_",
    [
        {"method": "GET"},
        {"method": "DELETE"},
        {"method": "POST", "body": b"x" * 10},
        {"method": "POST", "body": b"x" * 60_000},
    ],
    ids=str,
)
async def test_a_renewed_token_is_read_at_once_and_the_request_sent_again(
    tmp_path: Path, request_: dict[str, Any]
) -> None:
    accepted = "first"
    async with upstream(knows(lambda: accepted)) as made, served(kubernetes(tmp_path, at(made))) as site:
        assert (await site.client.ask(site.request(POD))).status == 200
        accepted = "second"
        write(tmp_path / "token", "second")
        answer = await site.client.ask(site.request(POD, **request_))
        assert (answer.status, answer.body) == (200, b"hi")
        assert made.requests[-1].body == request_.get("body", b"")
        tokens = [request.one("Authorization") for request in made.requests]
        assert tokens == [b"Bearer first", b"Bearer first", b"Bearer second"]
        assert await is_ready(site)
        # The new one is used from here on.
        assert (await site.client.ask(site.request(POD))).status == 200
        assert len(made.requests) == 4


async def test_a_body_that_still_comes_in_goes_on_to_the_second_attempt(tmp_path: Path) -> None:
    write(tmp_path / "token", "first")

    async def script(connection: Upstreamed) -> None:
        while True:
            head = await connection.head()
            if head.one("Authorization") == b"Bearer first":
                write(tmp_path / "token", "second")
                connection.send(WHOLE)
                continue
            await connection._body(head, until_close=False)
            connection.upstream.requests.append(head)
            connection.send(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")

    async with upstream(script) as made, served(kubernetes(tmp_path, at(made))) as site:
        site.client.send(site.request(POD, "Transfer-Encoding: chunked", method="POST") + b"4\r\none \r\n")
        await until(lambda: len(made.connections) == 2)
        site.client.send(b"3\r\ntwo\r\n0\r\n\r\n")
        assert (await site.client.answer()).status == 200
        assert [request.body for request in made.requests] == [b"one two"]


async def test_a_body_that_is_too_large_to_keep_is_not_sent_twice(tmp_path: Path) -> None:
    write(tmp_path / "token", "first")

    async with upstream(knows(lambda: "second")) as made, served(kubernetes(tmp_path, at(made))) as site:
        write(tmp_path / "token", "second")
        site.worker.app.routes.upstreams[0]._token._until = float("inf")  # type: ignore[union-attr]
        site.worker.app.routes.upstreams[0]._token._line = b"Authorization: Bearer first\r\n"  # type: ignore[union-attr]
        assert (await site.client.ask(site.request(POD, method="POST", body=b"x" * 200_000))).status == 503
        # What was read from the file serves the next one.
        assert (await site.client.ask(site.request(POD))).status == 200


async def test_a_request_is_sent_again_once_only(tmp_path: Path) -> None:
    numbers = iter(range(100))

    async def script(connection: Upstreamed) -> None:
        while True:
            connection.upstream.requests.append(await connection.request())
            write(tmp_path / "token", f"token-{next(numbers)}")
            connection.send(WHOLE)

    async with upstream(script) as made, served(kubernetes(tmp_path, at(made))) as site:
        assert (await site.client.ask(site.request(POD))).status == 503
        assert len(made.requests) == 2


async def test_readiness_is_red_from_the_first_rejection_until_the_upstream_accepts_us_again(tmp_path: Path) -> None:
    accepted = "second"
    async with upstream(knows(lambda: accepted)) as made, served(kubernetes(tmp_path, at(made))) as site:
        (cluster,) = site.worker.app.routes.upstreams
        assert await is_ready(site)
        assert (await site.client.ask(site.request(POD))).status == 503
        report = await site.worker.report()
        assert "upstream cluster: it rejects the gateway's own credential" in report.text()
        assert not await check_credential(cluster)
        assert not await is_ready(site)
        write(tmp_path / "token", "second")
        # Without any request of a user.
        assert await check_credential(cluster)
        assert await is_ready(site)


async def test_readiness_is_green_again_when_a_user_gets_an_answer(tmp_path: Path) -> None:
    accepted = "second"
    async with upstream(knows(lambda: accepted)) as made, served(kubernetes(tmp_path, at(made))) as site:
        assert (await site.client.ask(site.request(POD))).status == 503
        assert not await is_ready(site)
        accepted = "first"
        assert (await site.client.ask(site.request(POD))).status == 200
        assert await is_ready(site)


async def test_a_health_check_that_is_answered_401_makes_readiness_red_at_once(tmp_path: Path) -> None:
    accepted = "second"
    async with upstream(knows(lambda: accepted)) as made, served(kubernetes(tmp_path, at(made))) as site:
        (cluster,) = site.worker.app.routes.upstreams
        assert not await check_health(cluster, "/readyz")
        assert not await is_ready(site)
        write(tmp_path / "token", "second")
        cluster.renewed_credential(b"")
        assert await check_health(cluster, "/readyz")
        assert await is_ready(site)


@pytest.mark.parametrize("damage", ["missing", "empty", "two lines", "unreadable"])
async def test_a_credential_file_that_cannot_be_used_is_a_503_and_red_until_it_can(
    tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with upstream(knows(lambda: "first")) as made, served(kubernetes(tmp_path, at(made))) as site:
        token = tmp_path / "token"
        if damage == "missing":
            token.unlink()
        elif damage == "unreadable":
            token.unlink()
            token.mkdir()
        else:
            token.write_text("" if damage == "empty" else "a\nb")
        # The gateway has read it already, to say how it is; it is time to read it again.
        (cluster,) = site.worker.app.routes.upstreams
        cluster.renewed_credential(b"")
        for _ in range(5):
            answer = await site.client.ask(site.request(POD))
            assert (answer.status, json.loads(answer.body)["reason"]) == (503, "ServiceUnavailable")
        assert not await is_ready(site)
        assert "own credential cannot be read" in (await site.worker.report()).text()
        assert errors_of(site, "credential") == 5
        assert len([line for line in caplog.records if line.levelno >= logging.WARNING]) == 1
        assert made.requests == []
        if token.is_dir():
            token.rmdir()
        write(token, "first")
        assert await is_ready(site)
        assert (await site.client.ask(site.request(POD))).status == 200


async def test_a_program_behind_a_pod_says_401_in_its_own_name(tmp_path: Path) -> None:
    page = UNAUTHORIZED + b"X-Own: 1\r\nContent-Length: 12\r\n\r\nplease log in"[:-1]
    for answer in (page, UNAUTHORIZED + b"Transfer-Encoding: chunked\r\n\r\n" + chunked(b"please ", b"log in")):
        async with upstream(says(answer)) as made, served(kubernetes(tmp_path, at(made))) as site:
            got = await site.client.ask(site.request(BEHIND_A_POD))
            assert (got.status, got.body[:10]) == (401, b"please log")
            large = UNAUTHORIZED + b"Transfer-Encoding: chunked\r\n\r\n" + chunked(b"x" * 20_000, b"y" * 20_000)
            made.script = says(large)
            made.connections[0].writer.close()
            got = await site.client.ask(site.request(BEHIND_A_POD))
            assert (got.status, len(got.body)) == (401, 40_000)
            assert await is_ready(site)


async def test_a_401_of_an_api_that_is_given_no_credential_of_ours_is_its_own(tmp_path: Path) -> None:
    async with upstream(says(WHOLE)) as made, served(configured(tmp_path, at(made))) as site:
        answer = await site.client.ask(site.request("/x"))
        assert (answer.status, answer.body, answer.one("WWW-Authenticate")) == (401, STATUS, b"Bearer")
        assert await is_ready(site)


async def test_a_401_of_an_api_that_is_given_our_token_is_about_that_token(tmp_path: Path) -> None:
    write(tmp_path / "token", "first")
    section = {"name": "cluster", "identity": "none", "attributes": "http", "tokenFile": "token"}
    async with upstream(says(WHOLE)) as made:
        config = configured(tmp_path, at(made), upstreams=[{**section, "server": at(made)}])
        async with served(config) as site:
            assert (await site.client.ask(site.request("/x"))).status == 503
            assert not await is_ready(site)


async def test_a_rejected_client_certificate_is_a_503_and_a_renewed_one_is_used_at_once(
    tmp_path: Path, ca: trustme.CA
) -> None:
    """X-Remote-User over mTLS: the API server looks at the certificate with every request, and says 401."""
    server = server_context(ca, "localhost", client_certificates=ssl.CERT_OPTIONAL)
    ca.cert_pem.write_to_path(str(tmp_path / "ca.pem"))

    def present(name: str) -> None:
        leaf = ca.issue_cert(common_name=name)
        write(tmp_path / "client.key", leaf.private_key_pem.bytes().decode())
        write(tmp_path / "client.pem", leaf.cert_chain_pems[0].bytes().decode())

    async def script(connection: Upstreamed) -> None:
        subject = connection.writer.get_extra_info("ssl_object").getpeercert().get("subject", ())
        while True:
            connection.upstream.requests.append(await connection.request())
            good = (("commonName", "good"),) in subject
            connection.send(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n" if good else WHOLE)

    present("expired")
    section = {
        "name": "cluster",
        "identity": "requestHeader",
        "attributes": "kubernetes",
        "tls": {"ca": "ca.pem", "certificate": "client.pem", "key": "client.key"},
    }
    async with upstream(script, tls=server) as made:
        where = f"https://localhost:{made.port}"
        async with served(configured(tmp_path, where, upstreams=[{**section, "server": where}])) as site:
            assert (await site.client.ask(site.request(POD))).status == 503
            assert not await is_ready(site)
            present("good")
            assert (await site.client.ask(site.request(POD, method="POST", body=b"x"))).status == 200
            assert made.requests[-1].body == b"x"
            assert await is_ready(site)


async def test_an_outage_is_logged_once_in_a_while_with_a_count(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "ostiary.gateway")
    async with upstream() as made:
        server = at(made)
    async with served(configured(tmp_path, server)) as site:
        for _ in range(50):
            assert (await site.client.ask(site.request())).status == 503
        warnings = [line for line in caplog.records if line.levelno >= logging.WARNING]
        assert len(warnings) == 1
        (api,) = site.worker.app.routes.upstreams
        api.record_answer()
        (again,) = [line for line in caplog.records if "available again" in line.message]
        assert (again.failures, again.left_out) == (50, 49)  # type: ignore[attr-defined]


HOOKS = {"subjectAccessReview": True, "tokenReview": True, "callers": {"tokenFile": "callers"}}


async def test_a_webhook_that_cannot_read_who_may_ask_says_500_and_not_401(
    tmp_path_factory: pytest.TempPathFactory, subtests: pytest.Subtests
) -> None:
    for case, text in [("missing", None), ("empty", ""), ("blank", " \n")]:
        for hook in ["token-review", "subject-access-review"]:
            with subtests.test(case, hook=hook):
                tmp_path = tmp_path_factory.mktemp("case")
                (tmp_path / "callers").write_text("a-token")
                async with upstream() as made, served(configured(tmp_path, at(made), webhooks=HOOKS)) as site:
                    if text is None:
                        (tmp_path / "callers").unlink()
                    else:
                        (tmp_path / "callers").write_text(text)
                    for token in ("a-token", "another"):
                        request = get(f"/webhooks/{hook}", f"Authorization: Bearer {token}", method="POST", body=b"{}")
                        assert (await site.client.ask(request)).status == 500
                    (tmp_path / "callers").write_text("a-token")
                    request = get(f"/webhooks/{hook}", "Authorization: Bearer another", method="POST", body=b"{}")
                    assert (await site.client.ask(request)).status == 401


async def test_a_program_behind_a_pod_that_says_401_as_kubernetes_does_leaves_readiness_green(tmp_path: Path) -> None:
    """A user may have written it."""
    async with upstream(says(WHOLE)) as made, served(kubernetes(tmp_path, at(made))) as site:
        for _ in range(10):
            assert (await site.client.ask(site.request(BEHIND_A_POD))).status == 503
            assert await is_ready(site)


@pytest.mark.parametrize("attributes", ["kubernetes", "http"])
async def test_one_api_that_says_401_while_our_credential_is_accepted_leaves_readiness_green(
    tmp_path: Path, attributes: str
) -> None:
    """One that is aggregated, or the login of a program: whoever may ask it cannot make the gateway look broken."""

    async def script(connection: Upstreamed) -> None:
        while True:
            request = await connection.request()
            other = request.target.startswith(b"/apis/")
            connection.send(WHOLE if other else b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi")

    identity = {"attributes": attributes, "identity": "impersonation" if attributes == "kubernetes" else "none"}
    async with upstream(script) as made, served(kubernetes(tmp_path, at(made), **identity)) as site:
        for _ in range(10):
            answer = await site.client.ask(site.request("/apis/metrics.k8s.io/v1beta1/nodes"))
            assert answer.status == 503
            assert await is_ready(site)
