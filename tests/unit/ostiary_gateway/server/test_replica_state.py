"""What a worker says of itself to the replica that it belongs to."""

from __future__ import annotations

from pathlib import Path

from ostiary.model import UserInfo
from ostiary_gateway.replicas.drift import Heard, compare
from ostiary_gateway.replicas.replica import Replica
from ostiary_gateway.server import replica_state
from ostiary_gateway.server.replica_state import seen_json
from tests.support.http1 import upstream
from tests.unit.ostiary_gateway.proxy.test_engine import at, configured, served


def heard(host: str, configuration: str, silent: float = 0.0) -> Heard:
    return Heard(Replica(id=host, host=host, configuration=configuration, configuration_key="k"), silent)


def test_a_silent_replica_is_not_counted() -> None:
    seen = compare([heard("a", "x"), heard("b", "x"), heard("c", "y"), heard("d", "y", silent=12.0)])
    assert seen_json(seen[:3]) == {"replicas": 3, "other_configuration": 1}
    assert seen_json(seen) == {"replicas": 3, "other_configuration": 1}


async def test_a_worker_says_how_it_is(tmp_path: Path) -> None:
    async with upstream() as made, served(configured(tmp_path, at(made))) as site:
        for _ in range(3):
            await site.client.ask(site.request())
        state = await site.worker.replica.state()
        assert (state["requests"], state["tokens"], state["in_flight"]) == (3, 1, 0)
        assert state["revocation"] == 0
        assert ("token store", "") in state["checks"]


async def test_a_reload_is_another_configuration(tmp_path: Path) -> None:
    async with upstream() as made, served(configured(tmp_path, at(made))) as site:
        before = await site.worker.replica.state()
        await site.worker.reload(configured(tmp_path, at(made), authorization=CHAIN))
        assert (await site.worker.replica.state())["configuration"] != before["configuration"]


CHAIN = {"cacheTTL": "1s", "chain": [{"name": "all", "type": "allow_all"}]}


async def test_a_worker_that_is_alone_publishes_and_shows_how_many_it_sees(tmp_path: Path) -> None:
    async with upstream() as made, served(configured(tmp_path, at(made))) as site:
        await site.worker.replica.publish()
        assert b"ostiary_gateway_replicas 1\n" in site.worker.app.shared.metrics.render()
        own = await site.worker.app.shared.replica()
        assert own is not None
        assert (own.workers, own.trouble) == (1, "")


async def test_a_supervisor_is_answered_and_heard(tmp_path: Path) -> None:
    async with upstream() as made, served(configured(tmp_path, at(made))) as site:
        await site.worker.app.shared.tokens.issue(UserInfo("bob"), provider="me")
        assert await site.worker.answer(replica_state.STATE, None)
        await site.worker.answer(replica_state.SEEN, {"replicas": 5, "other_configuration": 2})
        shown = site.worker.app.shared.metrics.render()
        assert b"ostiary_gateway_replicas 5\n" in shown
        assert b"ostiary_gateway_replicas_other_configuration 2\n" in shown
