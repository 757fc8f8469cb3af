"""Questions whose very bytes came before are answered without an exchange: with the same bytes, checks and records."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ostiary.model import UserInfo
from ostiary_gateway.http1.request_head import RequestHead
from ostiary_gateway.http1.server_connection import ServerConnection
from ostiary_gateway.interfaces.token_store import RevocationKind
from ostiary_gateway.sessions import digest
from tests.support.collector import SERVER, collecting
from tests.support.http1 import connected, turn, until
from tests.unit.ostiary_gateway.extauth.test_browsers import SECTIONS, ask_as_nginx
from tests.unit.ostiary_gateway.extauth.test_forward_auth import ask, doors, headers, question
from tests.unit.ostiary_gateway.proxy.gateways import ALICE, DENY, Gateway, ImmediatePolicy, another_token
from tests.unit.ostiary_gateway.proxy.test_traced_engine_engine import traced

AGAIN = 5


class AnswersAgain:
    """Counts what a gateway answers without an exchange; it can be kept from doing that, too."""

    def __init__(self, site: Gateway) -> None:
        server = site.worker._http
        assert server.answer_known is not None
        self._answer = server.answer_known
        self.is_allowed = True
        self.count = 0
        server.answer_known = self

    def __call__(self, connection: ServerConnection, request: RequestHead) -> bytes:
        answer = self._answer(connection, request) if self.is_allowed else b""
        self.count += bool(answer)
        return answer


@asynccontextmanager
async def remembering(
    folder: Path, policy: ImmediatePolicy | None = None, **sections: Any
) -> AsyncIterator[tuple[Gateway, AnswersAgain]]:
    """A gateway that has been asked so often that it remembers the question."""
    async with doors(folder, policy or ImmediatePolicy(), **sections) as site:
        again = AnswersAgain(site)
        for _ in range(AGAIN):
            assert (await ask(site)).status == 200
        assert again.count == AGAIN - 2
        yield site, again


# --- the same as with an exchange ---

USERS = st.builds(
    UserInfo,
    st.sampled_from(["bob", "größe", "a b", "x" * 300]),
    uid=st.sampled_from(["", "7"]),
    groups=st.lists(st.sampled_from(["dev", "a,b", "50%", "größe"]), max_size=3, unique=True).map(tuple),
)
URIS = st.lists(st.sampled_from(["/a", "/b", "/%20", "/..", "//", "/x?y=1"]), min_size=1, max_size=3).map("".join)
METHODS = st.sampled_from(["GET", "GET", "HEAD", "POST", "TRACE", "FOO"])
LINES = (
    *("User-Agent: curl", "X-Remote-User: root", "X_Remote_User: root", "Impersonate-User: bob", "Connection: close"),
    *("X-Original-Content-Length: 12", "X-Original-Upgrade: websocket", "Content-Length: 0", "Expect: 100-continue"),
)


@settings(max_examples=12, deadline=None)
@given(USERS, URIS, METHODS, st.lists(st.sampled_from(LINES), max_size=2, unique=True))
async def test_the_answer_is_the_same_with_and_without_an_exchange(
    user: UserInfo, uri: str, method: str, lines: list[str]
) -> None:
    with TemporaryDirectory() as name:
        async with doors(Path(name), ImmediatePolicy()) as site:
            again = AnswersAgain(site)
            authorization = f"Bearer {await another_token(site, user)}"
            data = question(site, uri, *lines, X_Original_Method=method, Authorization=authorization)
            without = await _answers(site, data)
            count, again.is_allowed = again.count, False
            assert without == await _answers(site, data)
    if without[0].startswith(b"HTTP/1.1 200") and not lines:
        assert count == AGAIN - 2


@settings(max_examples=12, deadline=None)
@given(st.data())
async def test_bytes_that_are_nearly_a_known_question_are_read_as_if_nothing_was_known(draw: st.DataObject) -> None:
    with TemporaryDirectory() as name:
        async with remembering(Path(name)) as (site, again):
            data = bytearray(question(site))
            for _ in range(draw.draw(st.integers(1, 2))):
                at = draw.draw(st.integers(0, len(data) - 1))
                data[at : at + draw.draw(st.integers(0, 2))] = draw.draw(
                    st.sampled_from([b"", b"\r\n", b" ", b"x", b":"])
                )
            # What ends no head is only ended by whoever sends it.
            sent = bytes(data) + b"\r\n\r\n"
            answer = await _answers(site, sent, 2)
            again.is_allowed = False
            assert answer == await _answers(site, sent, 2)


async def _answers(site: Gateway, data: bytes, count: int = AGAIN) -> list[bytes]:
    """The heads that come back for the same bytes, without the id of the request, which differs each time."""
    answers: list[bytes] = []
    async with connected(site.port) as client:
        for _ in range(count):
            client.send(data)
            head = await client.reader.readuntil(b"\r\n\r\n")
            lines = [line for line in head.split(b"\r\n") if not line.lower().startswith(b"audit-id:")]
            answers.append(b"\r\n".join(lines))
            if b"connection: close" in head.lower():
                break
    return answers


async def test_each_question_is_counted_and_recorded_with_and_without_an_exchange(tmp_path: Path) -> None:
    async with remembering(tmp_path) as (site, _):
        events = await site.events()
        assert len({event["auditID"] for event in events}) == AGAIN
        for event in events:
            event.pop("auditID")
            assert event.pop("requestReceivedTimestamp") <= event.pop("stageTimestamp")
        assert all(event == events[0] for event in events)
        assert site.count("requests_total", "get", "200", "shop") == AGAIN
        assert site.count("door_questions_total", "nginx", "asked") == AGAIN
        assert site.seats == 0


# --- whatever ends a permission ends it here, too ---


@pytest.mark.parametrize("kind", [RevocationKind.USER, RevocationKind.SESSION])
async def test_a_revoked_token_is_refused_at_the_next_question(tmp_path: Path, kind: RevocationKind) -> None:
    async with remembering(tmp_path) as (site, again):
        tokens = site.worker.app.shared.tokens
        stored = await tokens.find(site.token)
        assert stored is not None
        await tokens.revoke(kind, "alice" if kind is RevocationKind.USER else stored.session.id)
        await turn()
        assert (await ask(site)).status == 401
        assert again.count == AGAIN - 2


async def test_a_token_whose_session_has_changed_tells_the_new_groups(tmp_path: Path) -> None:
    async with remembering(tmp_path) as (site, _):
        shared = site.worker.app.shared
        stored = await shared.tokens.find(site.token)
        token = shared.authenticator.recall(digest(site.token.encode()))
        assert stored is not None
        assert token is not None
        in_use = shared.authenticator.in_use
        in_use.forget(token)
        session = replace(stored.session, user=UserInfo("alice", "7", ("ops",)))
        in_use.remember(replace(stored, session=session), stored.token.expires_at)
        assert headers(await ask(site))["x-remote-group"] == "ops"


async def test_an_expired_token_is_refused(tmp_path: Path) -> None:
    async with remembering(tmp_path, tokens={"lifetime": "1h"}) as (site, _):
        site.clock.advance(seconds=3600)
        assert (await ask(site)).status == 401


async def test_a_gateway_that_may_have_missed_a_revocation_asks_the_store(tmp_path: Path) -> None:
    async with remembering(tmp_path) as (site, _):
        site.store.down = True
        site.clock.advance(seconds=60)
        answer = await ask(site)
        assert (answer.status, headers(answer)["x-ostiary-status"]) == (403, "503")


async def test_another_policy_is_noticed(tmp_path: Path) -> None:
    policy = ImmediatePolicy()
    async with remembering(tmp_path, policy) as (site, _):
        policy.rule, policy.revision = DENY, policy.revision + 1
        site.clock.advance(seconds=0.002)
        assert (await ask(site)).status == 403


async def test_a_reload_is_in_force_at_the_next_question(tmp_path: Path) -> None:
    async with remembering(tmp_path) as (site, again):
        config = site.worker.app.config
        (rule,) = config.authorization.chain
        denying = replace(config.authorization, chain=(replace(rule, instance=ImmediatePolicy(DENY)),))
        await site.worker.reload(replace(config, authorization=denying))
        assert site.worker._http.answer_known is not again, "a handler of before the reload is asked"
        assert (await ask(site)).status == 403
        await site.worker.reload(replace(site.worker.app.config, doors=()))
        assert (await ask(site)).status == 404


# --- what is unusual goes the usual way ---


async def test_rates_count_the_questions_and_the_refusal_is_told(tmp_path: Path) -> None:
    limits = {"requestsPerSecond": 1, "burst": AGAIN + 1}
    async with remembering(tmp_path, limits=limits) as (site, again):
        assert (await ask(site)).status == 200
        answer = await ask(site)
        assert (headers(answer)["x-ostiary-status"], headers(answer)["retry-after"]) == ("429", "1")
        assert again.count == AGAIN - 1
        site.clock.advance(seconds=1)
        assert (await ask(site)).status == 200


async def test_without_a_free_seat_a_question_waits(tmp_path: Path) -> None:
    async with remembering(tmp_path, limits={"concurrency": 1, "concurrencyPerUser": 1}) as (site, again):
        limits = site.worker.app.shared.limits
        leave = limits.try_enter(limits.share(ALICE))
        assert leave is not None
        waiting = asyncio.ensure_future(ask(site))
        await until(lambda: limits.seats.queued == 1)
        leave()
        assert (await waiting).status == 200
        assert again.count == AGAIN - 2


async def test_a_user_with_too_many_connections_is_refused(tmp_path: Path) -> None:
    async with remembering(tmp_path, limits={"connectionsPerUser": 1}) as (site, _):
        share = site.worker.app.shared.limits.share(ALICE)
        share.connections = 2
        assert headers(await ask(site))["x-ostiary-status"] == "429"
        share.connections = 0
        assert (await ask(site)).status == 200


async def test_whoever_watches_decisions_sees_them(tmp_path: Path) -> None:
    async with remembering(tmp_path) as (site, again):
        recent = site.worker.app.shared.recent
        recent.watch(60)
        assert (await ask(site)).status == 200
        assert again.count == AGAIN - 2
        (decision,) = recent.after(0, 0, 10).decisions
        assert decision.attributes.user.username == "alice"


async def test_a_connection_that_is_drained_says_that_it_ends(tmp_path: Path) -> None:
    async with remembering(tmp_path) as (site, _):
        for connection in site.worker._http.connections:
            connection.draining = True
        assert headers(await ask(site))["connection"] == "close"


async def test_a_question_with_a_body_is_answered_after_it_was_read(tmp_path: Path) -> None:
    async with remembering(tmp_path) as (site, again):
        data = question(site, "/x", "Content-Length: 4") + b"abcd"
        for _ in range(AGAIN):
            assert (await site.client.ask(data)).status == 200
        assert again.count == AGAIN - 2


async def test_each_question_has_its_trace(tmp_path: Path) -> None:
    with collecting() as collector:
        async with doors(tmp_path, ImmediatePolicy(), tracing=traced(collector)) as site:
            again = AnswersAgain(site)
            for _ in range(AGAIN):
                assert (await ask(site)).status == 200
            await until(lambda: len(collector.of_kind(SERVER)) == AGAIN)
        assert again.count == 0


async def test_where_an_answer_holds_more_than_the_identity_each_is_made_anew(tmp_path: Path) -> None:
    """The cookies of a browser without ours are told with each answer."""
    async with doors(tmp_path, ImmediatePolicy(), **SECTIONS) as site:
        again = AnswersAgain(site)
        for number in range(AGAIN):
            lines = (f"Authorization: Bearer {site.token}", f"Cookie: own={number % 2}")
            answer = await ask_as_nginx(site, "/x", *lines)
            assert headers(answer)["x-ostiary-cookie"] == f"own={number % 2}"
        assert again.count == 0


async def test_where_the_beginning_of_a_request_is_recorded_each_question_takes_the_long_way(tmp_path: Path) -> None:
    policy = {"apiVersion": "audit.k8s.io/v1", "kind": "Policy", "rules": [{"level": "Metadata"}]}
    (tmp_path / "policy.yaml").write_text(json.dumps(policy))
    audit = {"policy": "policy.yaml", "log": {"path": "audit.log"}}
    async with doors(tmp_path, ImmediatePolicy(), audit=audit) as site:
        again = AnswersAgain(site)
        for _ in range(AGAIN):
            assert (await ask(site)).status == 200
        stages = [event["stage"] for event in await site.events()]
        assert stages == ["RequestReceived", "ResponseComplete"] * AGAIN
        assert again.count == 0


async def test_questions_that_are_answered_without_an_exchange_are_compared_with_the_cluster(tmp_path: Path) -> None:
    """Shadow mode must see what comes before no policy any more."""
    cluster = {"name": "shop", "server": "http://127.0.0.1:1", "attributes": "kubernetes", "identity": "none"}
    upstreams = [{**cluster, "shadow": {"share": 1, "perSecond": 1000}}]
    async with remembering(tmp_path, upstreams=upstreams) as (site, again):
        assert again.count == AGAIN - 2
        await until(lambda: site.count("shadow_reviews_total", "unknown") == AGAIN)
        events = await site.events()
        ids = {event["auditID"] for event in events if event["stage"] == "ResponseComplete"}
        shadows = [event["auditID"] for event in events if event["stage"] == "ShadowReview"]
        assert (len(shadows), set(shadows)) == (AGAIN, ids)
