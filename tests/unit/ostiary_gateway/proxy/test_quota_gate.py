"""Requests that change objects wait for the providers that count them, and these are told what became of each."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ostiary.errors import ProviderError
from ostiary.model import Attributes
from ostiary_gateway.config.gateway_config import GatewayConfig
from ostiary_gateway.config.provider import Provider
from ostiary_gateway.interfaces.admission import (
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
from ostiary_gateway.proxy.quota_gate import outcome_of
from tests.support.http1 import Upstreamed, connected, until, upstream
from tests.unit.ostiary_gateway.proxy.gateways import ImmediatePolicy, at, configured, kubernetes, serving, silent
from tests.unit.ostiary_gateway.proxy.test_request_log import BLOCKING, fill_the_disk

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
    folder: Path, server: str, *providers: Counting, policy: ImmediatePolicy | None = None, **sections: Any
) -> GatewayConfig:
    config = configured(folder, server, policy, **{"upstreams": kubernetes(server), **sections})
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


def test_a_status_says_done_or_refused_and_all_else_leaves_doubt(subtests: pytest.Subtests) -> None:
    cases = [
        (0, WriteOutcome.UNKNOWN),
        (199, WriteOutcome.UNKNOWN),
        (200, WriteOutcome.DONE),
        (299, WriteOutcome.DONE),
        (300, WriteOutcome.UNKNOWN),
        (399, WriteOutcome.UNKNOWN),
        (400, WriteOutcome.NOT_DONE),
        (499, WriteOutcome.NOT_DONE),
        (500, WriteOutcome.UNKNOWN),
    ]
    for status, outcome in cases:
        with subtests.test(status=status, outcome=outcome):
            assert outcome_of(status, sent=True) is outcome
            assert outcome_of(status, sent=False) is WriteOutcome.NOT_DONE


class Blind(Counting):
    """Does not read the answers."""

    async def reserve(self, request: WriteRequest, api: UpstreamApi) -> Hold:
        hold = Held(self.results)
        hold.wants_body = False
        return hold


@pytest.mark.parametrize(("kinds", "told"), [((Blind, Counting), BODY), ((Blind, Blind), None)])
async def test_a_hold_that_reads_the_answer_gets_it_whole_and_the_audit_log_has_its_own(
    tmp_path: Path, kinds: tuple[type[Counting], ...], told: bytes | None
) -> None:
    rules = [{"level": "RequestResponse", "omitStages": ["RequestReceived"]}]
    policy = {"apiVersion": "audit.k8s.io/v1", "kind": "Policy", "rules": rules}
    (tmp_path / "policy.yaml").write_text(json.dumps(policy))
    audit = {"policy": "policy.yaml", "log": {"path": "audit.log"}}
    providers = [kind() for kind in kinds]
    async with upstream() as made, serving(with_counting(tmp_path, at(made), *providers, audit=audit)) as site:
        answer = await site.ask(PODS, "Content-Type: application/json", method="POST", body=BODY)
        assert answer.body == BODY
        await until(lambda: all(provider.results for provider in providers))
        for provider in providers:
            assert provider.results == [WriteResult(WriteOutcome.DONE, 200, told)]
        (event,) = await site.events()
        assert (event["requestObject"], event["responseObject"]) == ({"kind": "Pod"}, {"kind": "Pod"})


@pytest.mark.parametrize("smaller_first", [True, False])
async def test_a_body_is_read_for_all_if_one_needs_it_and_must_be_small_enough_for_each(
    tmp_path: Path, smaller_first: bool
) -> None:
    class NeedsNone(Counting):
        largest_body = 20

        def needs_body(self, attributes: Attributes) -> bool:
            return False

    providers = (NeedsNone(), Counting()) if smaller_first else (Counting(), NeedsNone())
    async with upstream() as made, serving(with_counting(tmp_path, at(made), *providers)) as site:
        assert (await site.ask(PODS, method="POST", body=BODY)).status == 200
        assert [[request.body for request in provider.requests] for provider in providers] == [[BODY], [BODY]]
        assert (await site.ask_once(PODS, method="POST", body=b"x" * 21)).status == 413


async def test_only_changes_of_a_kubernetes_upstream_are_counted(tmp_path: Path) -> None:
    """Neither what the gateway answers itself nor an upstream that is no Kubernetes has objects."""

    class Everything(Counting):
        def covers(self, attributes: Attributes) -> bool:
            return True

    provider = Everything()
    async with upstream() as made:
        upstreams = [
            {"name": "web", "server": at(made), "prefix": "/web", "attributes": "http", "identity": "none"},
            *kubernetes(at(made)),
        ]
        async with serving(with_counting(tmp_path, at(made), provider, upstreams=upstreams)) as site:
            assert (await site.ask("/web/x", method="DELETE")).status == 200
            revocation, kind = b'{"type": "user", "value": "bob"}', "Content-Type: application/json"
            own = await site.ask("/apis/ostiary.dev/v1/revocations", kind, method="POST", body=revocation)
            assert own.status == 201
            assert provider.requests == []
            assert (await site.ask(f"{PODS}/a", method="DELETE")).status == 200
            assert len(provider.requests) == 1


class Slow(Counting):
    """Answers when the test lets it."""

    def __init__(self) -> None:
        super().__init__()
        self.reached, self.gate = asyncio.Event(), asyncio.Event()

    async def reserve(self, request: WriteRequest, api: UpstreamApi) -> Hold | Admission | UpstreamAnswer:
        self.reached.set()
        await self.gate.wait()
        return await super().reserve(request, api)


async def test_a_client_that_hangs_up_while_room_is_made_changes_nothing(tmp_path: Path) -> None:
    provider = Slow()
    async with upstream() as made, serving(with_counting(tmp_path, at(made), provider)) as site:
        async with connected(site.port) as client:
            client.send(site.request(PODS, method="POST", body=BODY))
            await provider.reached.wait()
            assert (site.seats, site.worker.app.shared.limits.unread) == (1, len(BODY))
        await until(lambda: len(site.worker._http.connections) == 1)
        provider.gate.set()
        await until(lambda: bool(provider.results))
        assert provider.results == [WriteResult(WriteOutcome.NOT_DONE)]
        await until(lambda: not site.worker.app.engine.busy)
        assert (site.seats, site.worker.app.shared.limits.unread, made.requests) == (0, 0, [])


async def test_a_client_that_hangs_up_in_the_middle_of_its_body_asks_nobody_and_gives_its_seat_back(
    tmp_path: Path,
) -> None:
    provider = Counting()
    async with upstream() as made, serving(with_counting(tmp_path, at(made), provider)) as site:
        async with connected(site.port) as client:
            client.send(site.request(PODS, method="POST", body=BODY)[:-3])
            await until(lambda: site.seats == 1)
        await until(lambda: not site.worker.app.engine.busy)
        assert (site.seats, provider.requests, made.requests) == (0, [], [])


async def test_who_makes_us_keep_too_many_bodies_at_once_may_try_again_a_second_later(tmp_path: Path) -> None:
    provider = Slow()
    async with upstream() as made:
        config = with_counting(tmp_path, at(made), provider)
        config = replace(config, limits=replace(config.limits, unread_per_user=2 * len(BODY) - 1))
        async with serving(config) as site:
            site.client.send(site.request(PODS, method="POST", body=BODY))
            await provider.reached.wait()
            refused = await site.ask_once(PODS, method="POST", body=BODY)
            assert (refused.status, refused.one("Retry-After")) == (429, b"1")
            ended = site.ended(refused)
            assert ended is not None
            assert (ended.reason, ended.username) == ("over the limit: unread", "alice")
            assert site.count("rate_limited_total", "unread") == 1
            assert (site.seats, site.worker.app.shared.limits.unread) == (1, len(BODY))
            provider.gate.set()
            assert (await site.client.answer()).status == 200
            assert (await site.ask(PODS, method="POST", body=BODY)).status == 200
            assert site.worker.app.shared.limits.unread == 0


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        (ProviderError("it cannot be counted", cause="the table is locked"), "the table is locked"),
        (ProviderError("it cannot be counted"), "it cannot be counted"),
        (OSError("secret"), "OSError"),
    ],
)
async def test_a_hold_that_cannot_be_settled_is_logged_and_keeps_no_other_from_it(
    tmp_path: Path, error: Exception, cause: str, caplog: pytest.LogCaptureFixture
) -> None:
    class Failing(Held):
        async def settle(self, result: WriteResult) -> None:
            raise error

    first, second = Counting(lambda: Failing([])), Counting()
    async with upstream() as made, serving(with_counting(tmp_path, at(made), first, second)) as site:
        assert (await site.ask(PODS, method="POST", body=BODY)).status == 200
        await until(lambda: bool(second.results))
        assert second.results[0].outcome is WriteOutcome.DONE
    lines = [line for line in caplog.records if line.getMessage() == "what a request changed could not be counted"]
    assert [line.__dict__["cause"] for line in lines] == [cause]


async def test_what_cannot_be_counted_is_told_to_the_operator_and_recorded(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def fail() -> Hold:
        raise ProviderError("no", cause="the cluster is down")

    async with upstream() as made, serving(with_counting(tmp_path, at(made), Counting(fail))) as site:
        answer = await site.ask(PODS, method="POST", body=BODY)
        assert answer.status == 503
        assert b"down" not in answer.body
        assert site.count("provider_errors_total", "admission") == 1
        assert site.count("requests_total", "create", "503") == 1
        ended = site.ended(answer)
        assert ended is not None
        assert (ended.reason, ended.username) == ("the quota could not be counted: the cluster is down", "alice")
        (event,) = await site.events()
        assert (event["user"]["username"], event["responseStatus"]["code"]) == ("alice", 503)
    (line,) = [line for line in caplog.records if line.getMessage() == "a request could not be counted"]
    assert (line.levelno, line.__dict__["cause"]) == (logging.ERROR, "the cluster is down")
    assert line.__dict__["request_id"].encode() == answer.one("Audit-Id")


async def test_a_refusal_is_recorded_with_its_reason(tmp_path: Path) -> None:
    full = Counting(lambda: Admission(False, "it is full"))
    async with upstream() as made, serving(with_counting(tmp_path, at(made), full)) as site:
        assert (await site.ask(PODS, method="POST", body=BODY)).status == 403
        assert site.count("admission_refusals_total") == 1
        (event,) = await site.events()
        assert (event["user"]["username"], event["responseStatus"]["code"]) == ("alice", 403)
        assert event["responseStatus"]["message"] == "it is full"


@pytest.mark.parametrize(("kind", "sent"), [("application/yaml", b"application/yaml"), ("", b"application/json")])
async def test_what_the_upstream_said_to_a_dry_run_is_counted_recorded_and_sent_with_its_type(
    tmp_path: Path, kind: str, sent: bytes
) -> None:
    said = Counting(lambda: UpstreamAnswer(422, kind, b"invalid"))
    async with upstream() as made, serving(with_counting(tmp_path, at(made), said)) as site:
        answer = await site.ask(PODS, method="POST", body=BODY)
        assert (answer.status, answer.body, answer.one("Content-Type")) == (422, b"invalid", sent)
        assert answer.one("Cache-Control") == b"no-cache, private"
        assert site.count("requests_total", "create", "422") == 1
        (event,) = await site.events()
        assert event["auditID"].encode() == answer.one("Audit-Id")
        assert (event["user"]["username"], event["responseStatus"]["code"]) == ("alice", 422)


async def test_what_is_not_sent_because_it_cannot_be_recorded_is_not_counted(tmp_path: Path) -> None:
    provider = Counting()
    async with upstream() as made, serving(with_counting(tmp_path, at(made), provider, audit=BLOCKING)) as site:
        fill_the_disk(site)
        assert (await site.ask(PODS, method="POST", body=BODY)).status == 500
        await until(lambda: bool(provider.results))
        assert provider.results == [WriteResult(WriteOutcome.NOT_DONE)]
        assert (site.seats, made.requests) == (0, [])


async def test_what_is_not_sent_for_want_of_a_credential_of_our_own_is_not_counted(tmp_path: Path) -> None:
    provider = Counting()
    (tmp_path / "token").write_text("gateway-token")
    async with upstream() as made:
        upstreams = [{**kubernetes(at(made))[0], "tokenFile": "token"}]
        async with serving(with_counting(tmp_path, at(made), provider, upstreams=upstreams)) as site:
            (tmp_path / "token").unlink()
            site.clock.advance(120)
            assert (await site.ask(PODS, method="POST", body=BODY)).status == 503
            await until(lambda: bool(provider.results))
            assert provider.results == [WriteResult(WriteOutcome.NOT_DONE)]
            assert made.requests == []


async def test_an_answer_of_our_own_says_nothing_of_what_an_upstream_did_that_fell_silent(tmp_path: Path) -> None:
    async def falling_silent(connection: Upstreamed) -> None:
        connection.upstream.requests.append(await connection.request())
        connection.reset()

    provider = Counting()
    async with upstream(falling_silent) as made, serving(with_counting(tmp_path, at(made), provider)) as site:
        assert (await site.ask(PODS, method="POST", body=BODY)).status == 502
        await until(lambda: bool(provider.results))
        assert (provider.results[0].outcome, provider.results[0].status) == (WriteOutcome.UNKNOWN, 0)
