"""RBAC from a cluster with 100,000 bindings: the first list, one change, and for how long they hold up requests.

The cluster is a stand-in in a process of its own; the provider runs in the event loop of this one, as in a worker. A
task that only sleeps for half a millisecond again and again stands for the requests: how much later than that it wakes
is what a request would have waited.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from datetime import timedelta

from bench.table import Row
from ostiary.core.clock import SYSTEM_CLOCK
from ostiary.model import Attributes, RequestInfo, UserInfo
from ostiary_gateway.config import loads
from ostiary_gateway.providers.rbac import RbacAuthorization
from ostiary_gateway.providers.rbac.followed_policy import FollowedPolicy
from ostiary_gateway.providers.rbac.settings import FromSettings
from ostiary_gateway.proxy.following import FollowedUpstream
from ostiary_gateway.server.worker_process import tune_garbage_collector
from tests.support.rbac_cluster import RbacCluster, binding, role, rule

BINDINGS, CHANGES = 100_000, 30
NAP_SECONDS = 0.0005
_CONFIG = """
apiVersion: ostiary.dev/v1
kind: Gateway
store: {{type: memory}}
identity: [{{name: me, type: single_user}}]
authorization: {{chain: [{{name: everything, type: allow_all}}]}}
upstreams: [{{name: here, server: {url}, attributes: kubernetes}}]
"""


def run() -> Iterator[Row]:
    yield from asyncio.run(_measure())


async def _measure() -> list[Row]:
    rows = []
    async with _cluster() as (url, send):
        config = loads(_CONFIG.format(url=url), name="bench")
        reader = FollowedUpstream(config.upstreams[0], asyncio.get_running_loop(), SYSTEM_CLOCK)
        policy = FollowedPolicy(FromSettings("here", timedelta(minutes=10), 1_000_000, timedelta(hours=6)))
        provider = RbacAuthorization(following=policy)
        # As in a worker that has started.
        tune_garbage_collector()
        naps = _Naps()
        started, cpu = time.perf_counter(), time.process_time()
        following = asyncio.create_task(policy.follow(reader))
        while policy.trouble():
            await asyncio.sleep(0.001)
        took, used = time.perf_counter() - started, time.process_time() - cpu
        rows.append(Row(f"first list of {BINDINGS:,} bindings, to a policy in force", f"{took:.2f} s", "<= 5 s"))
        rows.append(Row("the same, CPU of the gateway", f"{used:.2f} s"))
        rows += naps.rows("first list")
        naps.reset()
        times = [await _change(provider, number, send) for number in range(CHANGES)]
        rows.append(Row("one binding changed, to effect", f"{statistics.median(times) * 1e3:.1f} ms", "<= 50 ms"))
        rows.append(Row("the same, slowest of 30", f"{max(times) * 1e3:.1f} ms"))
        rows += naps.rows("30 changes")
        naps.stop()
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
        reader.close()
    return rows


async def _change(provider: RbacAuthorization, number: int, send: asyncio.StreamWriter) -> float:
    """From the moment at which the cluster is told until the decision is another one."""
    user = f"new-user-{number}"
    request = RequestInfo("get", "GET", "", is_resource=True, namespace=f"team-{number}", resource="pods", name="web")
    attributes = Attributes(UserInfo(user), request)
    assert not provider.decide(attributes).allowed
    item = binding(f"binding-{number * 10}", f"team-{number}", "view", user)
    started = time.perf_counter()
    send.write(json.dumps(item).encode() + b"\n")
    while not provider.decide(attributes).allowed:
        await asyncio.sleep(0.0002)
    return time.perf_counter() - started


class _Naps:
    """A task that wants to run all the time: how late it was, and how much of that the event loop was at work."""

    def __init__(self) -> None:
        self._late: list[float] = []
        self._work: list[float] = []
        self._task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        while True:
            began, work = time.perf_counter(), time.thread_time()
            await asyncio.sleep(NAP_SECONDS)
            self._late.append(time.perf_counter() - began - NAP_SECONDS)
            self._work.append(time.thread_time() - work)

    def rows(self, what: str) -> list[Row]:
        late = sorted(self._late)
        p99 = late[int(len(late) * 0.99)] * 1e3
        longest = f"{late[-1] * 1e3:.1f} ms ({p99:.1f} ms)"
        return [
            Row(f"held up during {what}, longest (p99)", longest, "<= 5 ms"),
            Row("the same, by the CPU time of the event loop", f"{max(self._work) * 1e3:.1f} ms"),
        ]

    def reset(self) -> None:
        self._late.clear()
        self._work.clear()

    def stop(self) -> None:
        self._task.cancel()


@asynccontextmanager
async def _cluster() -> AsyncIterator[tuple[str, asyncio.StreamWriter]]:
    """The stand-in in a process; what is written to it is put into the cluster, an object a line."""
    pipe = asyncio.subprocess.PIPE
    command = (sys.executable, "-m", "bench.rbac_watch", str(BINDINGS))
    process = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe)
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        yield (await process.stdout.readline()).decode().strip(), process.stdin
    finally:
        process.kill()
        await process.wait()


async def _serve(count: int) -> None:
    async with RbacCluster() as cluster:
        cluster.put("ClusterRole", role("view", "", rule(["get"], "pods")))
        cluster.fill("RoleBinding", (_binding(number) for number in range(count)))
        print(cluster.url, flush=True)
        lines = asyncio.StreamReader()
        loop = asyncio.get_running_loop()
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
        while line := await lines.readline():
            cluster.put("RoleBinding", json.loads(line))


def _binding(number: int) -> dict[str, object]:
    item = binding(f"binding-{number}", f"team-{number // 10}", "view", f"user-{number}")
    # As an API server shows it, with who changed it last.
    entry = {"manager": "kubectl", "operation": "Update", "fieldsV1": {"f:roleRef": {}, "f:subjects": {}}}
    item["metadata"] |= {"uid": f"6c1f0a9e-0000-4000-8000-{number:012}", "managedFields": [entry]}
    return item


if __name__ == "__main__":
    asyncio.run(_serve(int(sys.argv[1])))
