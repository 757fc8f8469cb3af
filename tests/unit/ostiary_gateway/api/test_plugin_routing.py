"""What becomes of discovery when the upstream refuses, fails, or says what cannot be read."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.http1 import Script, Upstreamed, upstream
from tests.unit.ostiary_gateway.api.test_provider_resources import GROUP, PolicyWithRules
from tests.unit.ostiary_gateway.proxy.gateways import at, configured, kubernetes, serving

OK = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"


def answers(head: bytes, body: bytes = b"{}") -> Script:
    async def script(connection: Upstreamed) -> None:
        while True:
            connection.upstream.requests.append(await connection.request())
            connection.send(head + b"Content-Length: %d\r\n\r\n" % len(body) + body)

    return script


async def test_the_failure_of_the_upstream_is_its_failure(
    tmp_path_factory: pytest.TempPathFactory, subtests: pytest.Subtests
) -> None:
    cases = [
        (answers(b"HTTP/1.1 403 Forbidden\r\nContent-Type: application/json\r\n", b'{"kind":"Status"}'), 403),
        (answers(b"HTTP/1.1 404 Not Found\r\n"), 404),
        # About the gateway's own credential.
        (answers(b"HTTP/1.1 401 Unauthorized\r\n"), 503),
        (answers(b"HTTP/1.1 302 Found\r\nLocation: https://elsewhere.example.com/\r\n"), 502),
        (answers(OK, b"no JSON"), 502),
        (answers(OK, b"[" * 100_000), 502),
        (answers(OK, b'{"kind":"Pod"}'), 502),
    ]
    for script, status in cases:
        for path in ["/apis", "/apis/"]:
            with subtests.test(script=script, status=status, path=path):
                tmp_path = tmp_path_factory.mktemp("case")
                async with upstream(script) as made:
                    config = configured(tmp_path, at(made), PolicyWithRules(), upstreams=kubernetes(at(made)))
                    async with serving(config) as site:
                        answer = await site.ask(path)
                        assert (answer.status, answer.all("Location")) == (status, [])


async def test_an_upstream_that_is_away_is_503_and_the_providers_own_group_goes_on(tmp_path: Path) -> None:
    config = configured(tmp_path, "http://127.0.0.1:1", PolicyWithRules(), upstreams=kubernetes("http://127.0.0.1:1"))
    async with serving(config) as site:
        assert (await site.ask("/apis")).status == 503
        assert (await site.ask(f"/apis/{GROUP}/v1")).status == 200


async def test_only_json_is_asked_for_and_other_forms_pass_as_they_are(tmp_path: Path) -> None:
    async with upstream(answers(b"HTTP/1.1 200 OK\r\nContent-Type: application/x-protobuf\r\n", b"\x00binary")) as made:
        config = configured(tmp_path, at(made), PolicyWithRules(), upstreams=kubernetes(at(made)))
        async with serving(config) as site:
            answer = await site.ask("/openapi/v2", "Accept: application/x-protobuf")
            assert (answer.status, answer.body) == (200, b"\x00binary")
            await site.ask("/openapi/v3", "Accept: application/x-protobuf, application/json;v=1")
        assert [request.one("Accept") for request in made.requests] == [
            b"application/x-protobuf",
            b"application/json;v=1",
        ]


async def test_openapi_of_a_large_upstream_is_merged_too(tmp_path: Path) -> None:
    document = {"paths": {f"/api/v1/{n}": {"get": {"description": "x" * 100}} for n in range(5000)}}
    async with upstream(answers(OK, json.dumps(document).encode())) as made:
        config = configured(tmp_path, at(made), PolicyWithRules(), upstreams=kubernetes(at(made)))
        async with serving(config) as site:
            first = await site.ask("/openapi/v2")
            assert json.loads(first.body) == {**document, "definitions": {}}
            tag = first.one("ETag")
            assert tag is not None
            again = await site.ask("/openapi/v2", f"If-None-Match: W/x, {tag.decode()}")
            assert (again.status, again.body) == (304, b"")


async def test_who_has_no_plugins_is_asked_for_nothing(tmp_path: Path) -> None:
    """The very bytes of the upstream reach the client, and no document is read."""
    async with upstream(answers(OK, b"no JSON")) as made:
        async with serving(configured(tmp_path, at(made), upstreams=kubernetes(at(made)))) as site:
            assert (await site.ask("/apis")).body == b"no JSON"
        assert len(made.requests) == 1
