"""The steps of a request as spans: each step once, below the span of the request, which joins the audit event."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ostiary_gateway.config.provider import Provider
from ostiary_gateway.http1.exchange import Exchange
from ostiary_gateway.http1.request_head import RequestHead
from ostiary_gateway.observability.tracing import CURRENT
from ostiary_gateway.proxy.engine import Engine
from ostiary_gateway.proxy.traced_engine import TracedContext, TracedEngine
from tests.support.collector import CLIENT, SERVER, Collector, collecting, plain
from tests.support.http1 import Upstreamed, connected, get, listening, until, upstream
from tests.support.http1_server import Held
from tests.unit.ostiary_gateway.proxy.gateways import (
    DENY,
    ImmediatePolicy,
    Policy,
    Store,
    at,
    configured,
    endless,
    kubernetes,
    opened,
    serving,
    silent,
)
from tests.unit.ostiary_gateway.proxy.test_request_tasks import Broken

NOWHERE = "http://127.0.0.1:1"
PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def traced(collector: Collector, **more: Any) -> dict[str, Any]:
    """The spans of a request are sent together, and at once."""
    return {"endpoint": collector.url, "batch": 100, "wait": "1ms", **more}


async def requests(collector: Collector, number: int) -> None:
    """Wait until so many have come."""
    await until(lambda: len(collector.of_kind(SERVER)) == number)


async def only_request(collector: Collector) -> tuple[dict[str, Any], list[str]]:
    """The attributes of the only request, and the names of its steps."""
    await requests(collector, 1)
    (server,) = collector.of_kind(SERVER)
    return plain(server.attributes), [span.name for span in collector.children(server)]


async def test_without_tracing_the_engine_is_the_plain_one(tmp_path: Path) -> None:
    async with serving(configured(tmp_path, NOWHERE)) as site:
        assert type(site.worker.app.engine) is Engine


@pytest.mark.parametrize("asked", [1, 2, 4])
async def test_each_step_of_a_request_is_a_span_below_its_own(tmp_path: Path, asked: int) -> None:
    """Also of a head that is remembered, whose decision is not asked for again."""
    with collecting() as collector:
        async with upstream() as made:
            config = configured(
                tmp_path, at(made), ImmediatePolicy(), tracing=traced(collector), upstreams=kubernetes(at(made))
            )
            async with serving(config) as site:
                assert type(site.worker.app.engine) is TracedEngine
                for _ in range(asked):
                    answer = await site.ask("/api/v1/namespaces/x/pods?limit=5", "User-Agent: kubectl/1")
                    assert answer.status == 200
                await until(lambda: len(collector.spans) == 5 * asked)
        audit_ids = [(request.one("Audit-Id") or b"").decode() for request in made.requests]
        servers = collector.of_kind(SERVER)
        assert [plain(span.attributes)["ostiary.audit_id"] for span in servers] == audit_ids
        assert len({span.trace_id for span in servers}) == asked
        server = servers[-1]
        steps = collector.children(server)
        assert [step.name for step in steps] == ["authenticate", "authorize", "admit", "GET"]
        assert [step.kind == CLIENT for step in steps] == [False, False, False, True]
        assert all(step.trace_id == server.trace_id for step in steps)
        assert plain(steps[1].attributes) == {"ostiary.cached": asked > 1, "ostiary.decision": "allow"}
        sent = made.requests[-1]
        expected = f"00-{server.trace_id.hex()}-{steps[3].span_id.hex()}-01"
        assert sent.all("traceparent") == [expected.encode()]
        assert plain(server.attributes) == {
            "http.request.method": "GET",
            "http.response.status_code": 200,
            "url.scheme": "http",
            "url.path": "/api/v1/namespaces/x/pods",
            "network.protocol.version": "1.1",
            "network.peer.address": "127.0.0.1",
            "client.address": "127.0.0.1",
            "server.address": "gateway.test",
            "user_agent.original": "kubectl/1",
            "ostiary.audit_id": audit_ids[-1],
            "ostiary.decision": "allow",
            "ostiary.verb": "list",
            "ostiary.resource": "pods",
            "ostiary.namespace": "x",
            "ostiary.upstream": "k",
        }
        assert plain(steps[3].attributes) == {
            "http.request.method": "GET",
            "http.response.status_code": 200,
            "url.scheme": "http",
            "server.address": "127.0.0.1",
            "server.port": made.port,
            "ostiary.upstream": "k",
        }


# --- how requests end ---


async def test_who_presents_no_token_ends_at_the_first_step(tmp_path: Path) -> None:
    with collecting() as collector:
        async with serving(configured(tmp_path, NOWHERE, tracing=traced(collector))) as site:
            answer = await site.client.ask(get("/x?code=secret"))
            attributes, steps = await only_request(collector)
        assert steps == ["authenticate"]
        assert attributes["http.response.status_code"] == 401
        assert attributes["ostiary.audit_id"] == (answer.one("Audit-Id") or b"").decode()
        assert "ostiary.decision" not in attributes
        assert "secret" not in str(collector.spans)


async def test_a_refusal_ends_before_the_upstream_and_says_the_decision(tmp_path: Path) -> None:
    with collecting() as collector:
        config = configured(tmp_path, NOWHERE, ImmediatePolicy(DENY), tracing=traced(collector))
        async with serving(config) as site:
            assert (await site.ask()).status == 403
            attributes, steps = await only_request(collector)
        assert steps == ["authenticate", "authorize", "admit"]
        assert (attributes["ostiary.decision"], attributes["http.response.status_code"]) == ("deny", 403)
        assert "error.type" not in attributes, "a refusal is no failure of ours"
        assert {span.status.code for span in collector.spans} == {0}


async def test_what_nobody_can_decide_ends_with_a_failure(tmp_path: Path) -> None:
    policy = Policy()
    policy.fails = True
    with collecting() as collector:
        async with serving(configured(tmp_path, NOWHERE, policy, tracing=traced(collector))) as site:
            assert (await site.ask()).status == 500
            attributes, steps = await only_request(collector)
        assert steps == ["authenticate", "authorize"]
        assert (attributes["http.response.status_code"], attributes["error.type"]) == (500, "500")
        (server,) = collector.of_kind(SERVER)
        assert server.status.code == 2


async def test_an_upstream_that_is_away_is_told_from_one_that_refuses(tmp_path: Path) -> None:
    async def missing(connection: Upstreamed) -> None:
        await connection.request()
        connection.send(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")

    with collecting() as collector:
        async with upstream(missing) as made:
            upstreams = [
                {"name": "away", "server": NOWHERE, "prefix": "/away", "identity": "none", "attributes": "http"},
                {"name": "here", "server": at(made), "identity": "none", "attributes": "http"},
            ]
            async with serving(configured(tmp_path, NOWHERE, tracing=traced(collector), upstreams=upstreams)) as site:
                away = (await site.ask("/away")).status
                assert (await site.ask("/x")).status == 404
                await until(lambda: len(collector.of_kind(CLIENT)) == 2)
                await requests(collector, 2)
    assert away in (502, 503)
    assert [span.status.code for span in collector.of_kind(SERVER)] == [2, 0]
    assert [span.status.code for span in collector.of_kind(CLIENT)] == [2, 2]
    assert [plain(span.attributes)["error.type"] for span in collector.of_kind(CLIENT)] == [str(away), "404"]


async def test_who_waits_for_a_decision_and_a_seat_has_the_time_of_each(tmp_path: Path) -> None:
    policy = Policy()
    with collecting() as collector:
        async with upstream() as made:
            limits = {"concurrency": 1, "concurrencyPerUser": 1}
            config = configured(tmp_path, at(made), policy, tracing=traced(collector), limits=limits)
            async with serving(config) as site, connected(site.port) as first:
                first.send(site.request("/first", method="POST", body=b"12")[:-1])
                await until(lambda: site.seats == 1)
                policy.gate.clear()
                policy.reached.clear()
                site.client.send(site.request("/second"))
                await policy.reached.wait()
                site.clock.advance(2)
                policy.gate.set()
                await until(lambda: site.worker.app.shared.limits.seats.queued == 1)
                site.clock.advance(1)
                first.send(b"2")
                assert (await site.client.answer()).status == 200
                await requests(collector, 2)
        second = collector.of_kind(SERVER)[1]
        await until(lambda: len(collector.children(second)) == 4)
        seconds = [(span.end_time_unix_nano - span.start_time_unix_nano) / 1e9 for span in collector.children(second)]
        assert seconds == pytest.approx([0, 2, 1, 0])
        assert (second.end_time_unix_nano - second.start_time_unix_nano) / 1e9 == pytest.approx(3)


@pytest.mark.parametrize("when", ["looking up", "deciding", "forwarded"])
async def test_a_client_that_hangs_up_ends_its_trace(tmp_path: Path, when: str) -> None:
    policy = Policy()
    with collecting() as collector:
        settings = traced(collector)
        async with upstream(silent) as made, serving(configured(tmp_path, at(made), policy, tracing=settings)) as site:
            gates: dict[str, Store | Policy] = {"looking up": site.store, "deciding": policy}
            waited = gates.get(when)
            if waited is not None:
                waited.gate.clear()
            async with connected(site.port) as client:
                client.send(site.request())
                if waited is None:
                    await until(lambda: bool(made.requests))
                else:
                    await waited.reached.wait()
            await until(lambda: len(site.worker._http.connections) == 1)
            if waited is not None:
                waited.gate.set()
            attributes, steps = await only_request(collector)
    expected = {"looking up": ["authenticate"], "deciding": ["authenticate", "authorize"]}
    assert steps == expected.get(when, ["authenticate", "authorize", "admit", "GET"])
    assert attributes["error.type"] == "client_gone"
    assert "http.response.status_code" not in attributes


async def test_what_fails_inside_the_gateway_ends_with_a_failure(tmp_path: Path) -> None:
    with collecting() as collector:
        async with upstream() as made:
            config = configured(tmp_path, at(made), tracing=traced(collector))
            config = replace(config, admission=(Provider("broken", "broken", Broken()),))
            async with serving(config, may_fail_inside=True) as site:
                # The first waits for its token; with the second everything is known, and it fails at once.
                for _ in range(2):
                    assert (await site.ask()).status == 500
                await requests(collector, 2)
    for server in collector.of_kind(SERVER):
        assert plain(server.attributes)["http.response.status_code"] == 500
        assert [step.name for step in collector.children(server)] == ["authenticate", "authorize", "admit"]


async def test_what_fails_in_the_middle_of_its_answer_ends_with_a_failure(tmp_path: Path) -> None:
    held = Held()
    with collecting() as collector:
        gateway = serving(configured(tmp_path, NOWHERE, tracing=traced(collector)), may_fail_inside=True)
        async with gateway as site, listening(held) as listener, connected(listener.port) as client:
            client.send(get())
            await until(lambda: bool(held.exchanges))
            engine = site.worker.app.engine
            assert isinstance(engine, TracedEngine)
            trace = engine._traces.tracer.start(None, "")
            ctx = TracedContext(held.exchanges[0], site.clock.monotonic(), "an-id", trace, engine._traces)
            ctx.exchange.write(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf")
            engine._tasks.fail(ctx, RuntimeError("nobody expected this"))
            attributes, _ = await only_request(collector)
    assert (attributes["http.response.status_code"], attributes["ostiary.audit_id"]) == (500, "an-id")


async def test_a_watch_ends_when_it_is_over(tmp_path: Path) -> None:
    with collecting() as collector:
        async with upstream(endless) as made:
            config = configured(tmp_path, at(made), tracing=traced(collector), upstreams=kubernetes(at(made)))
            async with serving(config) as site:
                async with opened(site, "/api/v1/pods?watch=1"):
                    site.clock.advance(60)
                    assert collector.posts == 0
                attributes, _ = await only_request(collector)
    assert (attributes["ostiary.verb"], attributes["http.response.status_code"]) == ("watch", 200)


async def test_the_decision_on_a_request_in_anothers_name_is_never_a_known_one(tmp_path: Path) -> None:
    with collecting() as collector:
        async with upstream() as made:
            config = configured(tmp_path, at(made), ImmediatePolicy(), tracing=traced(collector, userNames=True))
            async with serving(config) as site:
                for number in range(1, 4):
                    assert (await site.ask("/x", "Impersonate-User: bob")).status == 200
                    await requests(collector, number)
    for server in collector.of_kind(SERVER):
        _, authorize, *_ = collector.children(server)
        assert plain(authorize.attributes) == {"ostiary.cached": False, "ostiary.decision": "allow"}
        assert plain(server.attributes)["enduser.id"] == "bob"


# --- what the gateway answers itself ---


async def test_our_own_api_is_answered_in_a_step_of_its_own(tmp_path: Path) -> None:
    with collecting() as collector:
        async with serving(configured(tmp_path, NOWHERE, tracing=traced(collector))) as site:
            body = b'{"type": "user", "value": "bob"}'
            answer = await site.ask(
                "/apis/ostiary.dev/v1/revocations", "Content-Type: application/json", method="POST", body=body
            )
            assert answer.status == 201
            _, steps = await only_request(collector)
    assert steps == ["authenticate", "authorize", "admit", "answer"]


async def test_a_sign_in_has_its_parts_inside(tmp_path: Path) -> None:
    with collecting() as collector:
        async with serving(configured(tmp_path, NOWHERE, tracing=traced(collector))) as site:
            answer = await site.client.ask(get("/auth?code=secret").replace(b"gateway.test", b"127.0.0.1"))
            assert answer.status == 200
            attributes, steps = await only_request(collector)
            await until(lambda: len(collector.spans) == 6)
        assert steps == ["authenticate", "sign-in"]
        (sign_in,) = [span for span in collector.spans if span.name == "sign-in"]
        parts = collector.children(sign_in)
        assert [part.name for part in parts] == ["ask identity provider", "look up groups", "issue tokens"]
        assert plain(parts[0].attributes) == {"ostiary.provider": "me"}
        assert attributes["url.path"] == "/auth"
        everything = str(collector.spans)
        for secret in ("secret", json.loads(answer.body)["token"]):
            assert secret not in everything


async def test_the_trace_of_a_sign_in_is_seen_by_its_own_task_alone(tmp_path: Path) -> None:
    with collecting() as collector:
        async with serving(configured(tmp_path, NOWHERE, tracing=traced(collector))) as site:
            head = RequestHead()
            head.method, head.target, head.host = b"GET", b"/auth/methods", b"127.0.0.1"
            (connection,) = site.worker._http.connections
            exchange = Exchange(connection, head)
            exchange.body_complete = True
            site.worker.app.engine.handle(exchange)
            assert CURRENT.get() is None
            assert (await site.client.answer()).status == 200


async def test_a_review_of_a_cluster_is_one_step(tmp_path: Path) -> None:
    (tmp_path / "callers").write_text("caller-secret")
    hooks = {"subjectAccessReview": True, "callers": {"tokenFile": "callers"}}
    review = {"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": {"user": "ann"}}
    review["spec"] = {"user": "ann", "resourceAttributes": {"verb": "get", "resource": "pods"}}
    ask = get(
        "/webhooks/subject-access-review?timeout=30s",
        "Authorization: Bearer caller-secret",
        method="POST",
        body=json.dumps(review).encode(),
    )
    with collecting() as collector:
        config = configured(tmp_path, NOWHERE, ImmediatePolicy(), tracing=traced(collector), webhooks=hooks)
        async with serving(config) as site:
            for number in range(1, 4):
                assert (await site.client.ask(ask)).status == 200
                await requests(collector, number)
        for server in collector.of_kind(SERVER):
            assert [step.name for step in collector.children(server)] == ["authenticate", "review"]
            assert plain(server.attributes)["url.path"] == "/webhooks/subject-access-review"
        assert "caller-secret" not in str(collector.spans)


# --- whose trace ---


@pytest.mark.parametrize(
    ("parents", "trusted", "continued"),
    [
        ("TrustedProxies", False, False),
        ("TrustedProxies", True, True),
        ("Always", False, True),
        ("Never", True, False),
    ],
)
async def test_a_named_trace_is_continued_only_for_those_who_are_trusted_with_it(
    tmp_path: Path, parents: str, trusted: bool, continued: bool
) -> None:
    """Three times the same head, so that it is a remembered one in the end."""
    listen = {"address": "127.0.0.1:0", **({"trustedProxies": ["127.0.0.1"]} if trusted else {})}
    with collecting() as collector:
        async with upstream() as made:
            settings = traced(collector, parents=parents)
            config = configured(
                tmp_path, at(made), ImmediatePolicy(), tracing=settings, listen=listen, insecureAllowAll=True
            )
            async with serving(config) as site:
                for number in range(1, 4):
                    answer = await site.ask("/x", f"traceparent: {PARENT}", "TraceState: a=1", "tracestate: b=2")
                    assert answer.status == 200
                    await requests(collector, number)
                assert len(site.worker._http.known) == 1
            _, trace_id, span_id, _ = PARENT.split("-")
            for server, request in zip(collector.of_kind(SERVER), made.requests, strict=True):
                assert (server.trace_id.hex() == trace_id) == continued
                assert server.parent_span_id.hex() == (span_id if continued else "")
                assert [link.span_id.hex() for link in server.links] == ([] if continued else [span_id])
                (parent,) = request.all("traceparent")
                assert parent.decode().split("-")[1] == server.trace_id.hex()
                assert parent.decode().split("-")[2] not in (span_id, server.span_id.hex())
                assert request.all("tracestate") == ([b"a=1,b=2"] if continued else [])


async def test_a_trace_that_is_not_recorded_is_still_told_to_the_upstream(tmp_path: Path) -> None:
    with collecting() as collector:
        async with (
            upstream() as made,
            serving(configured(tmp_path, at(made), tracing=traced(collector, ratio=0))) as site,
        ):
            for _ in range(3):
                assert (await site.ask("/x", f"traceparent: {PARENT}")).status == 200
        assert collector.posts == 0
    parents = [(request.one("traceparent") or b"").decode() for request in made.requests]
    assert all(parent.endswith("-00") for parent in parents)
    assert len({parent.split("-")[1] for parent in parents}) == 3


async def test_without_tracing_a_trace_passes_like_any_other_header(tmp_path: Path) -> None:
    async with upstream() as made, serving(configured(tmp_path, at(made))) as site:
        for _ in range(3):
            await site.ask("/x", f"traceparent: {PARENT}", "tracestate: a=1")
    assert [request.all("traceparent") for request in made.requests] == [[PARENT.encode()]] * 3
    assert [request.all("tracestate") for request in made.requests] == [[b"a=1"]] * 3


@pytest.mark.parametrize("told", [False, True])
async def test_the_name_of_a_user_is_told_only_where_that_is_configured(tmp_path: Path, told: bool) -> None:
    with collecting() as collector:
        async with upstream() as made:
            config = configured(tmp_path, at(made), tracing=traced(collector, userNames=told))
            async with serving(config) as site:
                assert (await site.ask()).status == 200
                attributes, _ = await only_request(collector)
        assert attributes.get("enduser.id") == ("alice" if told else None)
        assert ("alice" in str(collector.spans)) == told


async def test_a_method_that_nobody_knows_is_not_made_a_name(tmp_path: Path) -> None:
    with collecting() as collector:
        async with upstream() as made, serving(configured(tmp_path, at(made), tracing=traced(collector))) as site:
            assert (await site.ask(method="PURGE")).status == 200
            attributes, steps = await only_request(collector)
            (server,) = collector.of_kind(SERVER)
    assert (server.name, steps[-1], attributes["http.request.method"]) == ("HTTP", "HTTP", "_OTHER")


async def test_a_reload_begins_and_ends_tracing_and_sends_what_was_recorded(tmp_path: Path) -> None:
    with collecting() as collector:
        async with upstream() as made:
            plain_config = configured(tmp_path, at(made))
            later = configured(tmp_path, at(made), tracing={"endpoint": collector.url, "batch": 100, "wait": "1h"})
            async with serving(plain_config) as site:
                store = site.worker.app.config.store
                assert (await site.ask()).status == 200
                await site.worker.reload(replace(later, store=store))
                assert (await site.ask()).status == 200
                assert collector.posts == 0
                await site.worker.reload(replace(plain_config, store=store))
                assert (await site.ask()).status == 200
                await site.worker._retire()
                assert len(collector.of_kind(SERVER)) == 1
                assert site.count("spans_sent_total") == 5


async def test_a_request_that_a_reload_overtakes_is_sent_by_the_next_configuration(tmp_path: Path) -> None:
    with collecting() as collector:
        async with upstream(endless) as made:
            first = configured(tmp_path, at(made), tracing=traced(collector, wait="1h"))
            second = configured(tmp_path, at(made), tracing=traced(collector))
            async with serving(first) as site, opened(site, "/held"):
                async with opened(site, "/ended"):
                    await site.worker.reload(replace(second, store=site.worker.app.config.store))
                attributes, _ = await only_request(collector)
                assert attributes["url.path"] == "/ended"


async def test_a_body_that_cannot_be_read_is_refused_with_the_id_that_its_trace_has(tmp_path: Path) -> None:
    with collecting() as collector:
        async with upstream() as made, serving(configured(tmp_path, at(made), tracing=traced(collector))) as site:
            async with connected(site.port) as client:
                client.send(site.request("/x", "Transfer-Encoding: chunked", method="POST"))
                await until(lambda: site.seats == 1)
                client.send(b"broken\r\n")
                answer = await client.answer()
            attributes, _ = await only_request(collector)
    assert answer.status == 400
    assert attributes["ostiary.audit_id"] == (answer.one("Audit-Id") or b"").decode()
