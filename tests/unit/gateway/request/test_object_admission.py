"""Requests that change objects wait for the providers that count them, and these are told what became of each."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from ostiary.errors import ProviderError
from ostiary.gateway.config.settings import GatewayConfig, Provider
from ostiary.interfaces.admission import (
    Admission,
    CountingFigures,
    Hold,
    SubjectUsage,
    UpstreamAnswer,
    UpstreamApi,
    WriteOutcome,
    WriteRequest,
    WriteResult,
)
from ostiary.model import Attributes
from tests.support.http1 import Upstreamed, until, upstream
from tests.unit.gateway.request.gateways import ImmediatePolicy, at, configured, kubernetes, serving, silent

PODS = "/api/v1/namespaces/team/pods"
BODY = b'{"kind":"Pod"}'


class Held:
    wants_body = True

    def __init__(self, results: list[WriteResult]) -> None:
        self._results = results

    async def settle(self, result: WriteResult) -> None:
        self._results.append(result)


class Counting:
    """An admission provider that says what it was told to, and notes what it is asked."""

    largest_body = 100

    def __init__(self, answer: Callable[[], Hold | Admission | UpstreamAnswer] | None = None) -> None:
        self.results: list[WriteResult] = []
        self.requests: list[WriteRequest] = []
        self._answer = answer
        self.before_answer: Callable[[], None] = lambda: None

    def admit(self, attributes: Attributes, *, size: int | None) -> Admission:
        return Admission(True)

    def settled(self, attributes: Attributes, *, status: int) -> None:
        pass

    def covers(self, attributes: Attributes) -> bool:
        return attributes.request.resource == "pods"

    def needs_body(self, attributes: Attributes) -> bool:
        return attributes.request.verb == "create"

    async def reserve(self, request: WriteRequest, api: UpstreamApi) -> Hold | Admission | UpstreamAnswer:
        self.requests.append(request)
        self.before_answer()
        return Held(self.results) if self._answer is None else self._answer()

    async def reconcile(self, api: UpstreamApi) -> None:
        pass

    async def usage(self, api: UpstreamApi) -> list[SubjectUsage]:
        return []

    def figures(self) -> CountingFigures:
        return CountingFigures({})


def with_counting(
    folder: Path, server: str, *providers: Counting, policy: ImmediatePolicy | None = None
) -> GatewayConfig:
    config = configured(folder, server, policy, upstreams=kubernetes(server))
    return replace(config, admission=tuple(Provider(str(number), "x", each) for number, each in enumerate(providers)))


async def test_only_what_is_covered_is_held_up_and_goes_on_as_it_came(tmp_path: Path) -> None:
    provider = Counting()
    async with upstream() as made, serving(with_counting(tmp_path, at(made), provider)) as site:
        kind = "Content-Type: application/json"
        assert (await site.ask(f"{PODS}?x=1", kind, method="POST", body=BODY)).status == 200
        # The second time the very bytes of the head are known, and no header is parsed.
        for _ in range(2):
            assert (await site.ask(f"{PODS}?x=1", kind, method="POST", body=BODY)).status == 200
        assert (await site.ask(PODS)).status == 200
        assert (await site.ask("/api/v1/namespaces/team/secrets", method="POST", body=BODY)).status == 200
        assert (await site.ask(f"{PODS}/a", method="DELETE")).status == 200
        first, second, third, delete = provider.requests
        assert (first.target, first.body, first.headers) == (
            f"{PODS}?x=1",
            BODY,
            (("Content-Type", "application/json"),),
        )
        assert (second, third) == (first, first)
        assert delete.body is None
        assert [request.body for request in made.requests if request.start.startswith(b"POST")] == [BODY] * 4
        await until(lambda: len(provider.results) == 4)
        assert {result.outcome for result in provider.results} == {WriteOutcome.DONE}
        assert site.seats == 0
        assert site.worker.app.shared.limits.unread == 0


@pytest.mark.parametrize(
    ("answer", "status"),
    [
        (Admission(False, "it is full"), 403),
        (UpstreamAnswer(409, "application/json", b'{"reason":"AlreadyExists"}'), 409),
        (ProviderError("no", cause="down"), 503),
        (OSError("broken"), 500),
    ],
)
async def test_what_is_not_reserved_is_not_forwarded(
    tmp_path: Path, answer: Admission | UpstreamAnswer | Exception, status: int
) -> None:
    def reply() -> Admission | UpstreamAnswer:
        if isinstance(answer, Exception):
            raise answer
        return answer

    first, second = Counting(), Counting(reply)
    async with upstream() as made, serving(with_counting(tmp_path, at(made), first, second)) as site:
        got = await site.ask(PODS, method="POST", body=BODY)
        assert got.status == status
        if status == 403:
            assert json.loads(got.body)["message"] == "pods is forbidden: it is full"
            ended = site.ended(got)
            assert ended is not None
            assert ended.reason == "it is full"
        if status == 409:
            assert json.loads(got.body) == {"reason": "AlreadyExists"}
        await until(lambda: bool(first.results))
        assert first.results == [WriteResult(WriteOutcome.NOT_DONE)], "what an earlier provider held is given back"
        assert made.requests == []
        assert site.seats == 0


async def answering_500(connection: Upstreamed) -> None:
    connection.upstream.requests.append(await connection.head())
    connection.send(b"HTTP/1.1 500 Internal Server Error\r\nContent-Length: 2\r\n\r\n{}")


async def answering_409(connection: Upstreamed) -> None:
    connection.upstream.requests.append(await connection.head())
    connection.send(b"HTTP/1.1 409 Conflict\r\nContent-Length: 2\r\n\r\n{}")


async def hanging_up(connection: Upstreamed) -> None:
    connection.upstream.requests.append(await connection.head())
    connection.writer.close()


@pytest.mark.parametrize(
    ("script", "outcome", "status"),
    [
        (answering_409, WriteOutcome.NOT_DONE, 409),
        (answering_500, WriteOutcome.UNKNOWN, 500),
        (hanging_up, WriteOutcome.UNKNOWN, 0),
    ],
)
async def test_a_provider_is_told_what_the_upstream_did_as_far_as_it_is_known(
    tmp_path: Path, script: Callable[[Upstreamed], object], outcome: WriteOutcome, status: int
) -> None:
    provider = Counting()
    async with upstream(script) as made, serving(with_counting(tmp_path, at(made), provider)) as site:  # type: ignore[arg-type]
        await site.ask(f"{PODS}/a", method="DELETE")
        await until(lambda: bool(provider.results))
        (result,) = provider.results
        assert (result.outcome, result.status) == (outcome, status)


async def test_nothing_was_done_by_an_upstream_that_was_never_reached(tmp_path: Path) -> None:
    async with upstream() as made:
        server = at(made)
    provider = Counting()
    async with serving(with_counting(tmp_path, server, provider)) as site:
        assert (await site.ask(f"{PODS}/a", method="DELETE")).status == 503
        await until(lambda: bool(provider.results))
        assert provider.results[0].outcome is WriteOutcome.NOT_DONE


async def test_a_client_that_hangs_up_leaves_doubt(tmp_path: Path) -> None:
    provider = Counting()
    async with upstream(silent) as made, serving(with_counting(tmp_path, at(made), provider)) as site:
        site.client.send(site.request(f"{PODS}/a", method="DELETE"))
        await until(lambda: bool(made.requests))
        site.client.writer.close()
        await until(lambda: bool(provider.results))
        assert provider.results[0].outcome is WriteOutcome.UNKNOWN


async def test_a_body_beyond_the_bound_is_refused_and_nothing_reserved(tmp_path: Path) -> None:
    provider = Counting()
    async with upstream() as made, serving(with_counting(tmp_path, at(made), provider)) as site:
        assert (await site.ask_once(PODS, method="POST", body=b"x" * 101)).status == 413
        assert (provider.requests, made.requests) == ([], [])
        assert site.seats == 0


async def test_a_right_that_is_withdrawn_meanwhile_forwards_nothing(tmp_path: Path) -> None:
    provider, policy = Counting(), ImmediatePolicy()
    async with (
        upstream() as made,
        serving(with_counting(tmp_path, at(made), provider, policy=policy)) as site,
    ):

        def revoke() -> None:
            for token in site.worker.app.shared.authenticator.in_use.every():
                token.revoked = True

        provider.before_answer = revoke
        assert (await site.ask(PODS, method="POST", body=BODY)).status == 401
        await until(lambda: bool(provider.results))
        assert provider.results[0].outcome is WriteOutcome.NOT_DONE
        assert made.requests == []
