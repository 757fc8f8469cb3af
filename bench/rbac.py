"""What an RBAC decision costs that no cache has, and whether the bindings of others make it dearer. In CPU time."""

from __future__ import annotations

import gc
import statistics
import time
import tracemalloc
from collections.abc import Iterator

from bench import rbac_files
from bench.pace import pace
from bench.table import Row
from ostiary.model import Attributes, RequestInfo, UserInfo
from ostiary_gateway.interfaces.authorization import Subject
from ostiary_gateway.providers.rbac import RbacAuthorization
from ostiary_gateway.wire.rbac import CLUSTER_ROLE_BINDING, ROLE_BINDING, USER, USER_GROUP, Binding, Manifests

SIZES = (10, 1_000, 100_000)
DECISIONS, FIRST, TURNS, CALLERS = 500, 50, pace(60, quick=3), 50
MAX_MICROSECONDS, MAX_RATIO = 5, 2


def run() -> Iterator[Row]:
    providers, asked, built = {}, {}, {}
    for size in SIZES:
        policy = make_policy(size)
        gc.collect()
        started = time.thread_time()
        providers[size] = RbacAuthorization(policy=policy)
        built[size] = time.thread_time() - started
        asked[size] = questions_for(size)
        assert {providers[size].decide(one).allowed for one in asked[size]} == {True, False}
    times: dict[int, list[float]] = {size: [] for size in SIZES}
    # In turns: the machine is shared.
    for _ in range(TURNS):
        for size in SIZES:
            times[size].append(_turn(providers[size], asked[size]))
    took = {size: statistics.median(found) / DECISIONS * 1e6 for size, found in times.items()}
    for size in SIZES:
        yield Row(f"decision, {size:,} bindings", f"{took[size]:.2f} us", f"<= {MAX_MICROSECONDS} us")
    ratios = [many / few for few, many in zip(times[SIZES[0]], times[SIZES[-1]], strict=True)]
    yield Row("100,000 bindings / 10 bindings", f"{statistics.median(ratios):.2f}", f"<= {MAX_RATIO}")
    first = RbacAuthorization(policy=make_policy(SIZES[-1]))
    once = _turn(first, asked[SIZES[-1]][:FIRST]) / FIRST * 1e6
    yield Row("first decision of a user, 100,000 bindings", f"{once:.1f} us")
    yield Row("index of 100,000 bindings, made in", f"{built[SIZES[-1]]:.2f} s", "<= 1 s")
    yield Row("index of 100,000 bindings, memory", f"{_memory(SIZES[-1]) / 1024**2:.0f} MiB", "<= 100 MiB")
    yield from rbac_files.run()


def make_policy(size: int) -> Manifests:
    """Nine users to a namespace, each with a role there, and for every nine of them a group in the whole cluster."""
    return Manifests(bindings=tuple(binding_of(number) for number in range(size)))


def binding_of(number: int) -> Binding:
    role = ("view", "edit", "admin")[number % 3]
    if number % 10 == 9:
        subjects = (Subject(USER_GROUP, f"group-{number}"),)
        return Binding(CLUSTER_ROLE_BINDING, f"binding-{number}", role_name="view", subjects=subjects)
    subjects = (Subject(USER, f"user-{number}"),)
    return Binding(ROLE_BINDING, f"binding-{number}", f"team-{number // 10}", role_name=role, subjects=subjects)


def questions_for(size: int) -> list[Attributes]:
    """As many users in all sizes, so that they do not differ in what the processor's caches can hold."""
    asked = []
    for number in range(DECISIONS):
        one = (number % CALLERS) * (size // min(size, CALLERS)) % size // 10 * 10 + number % 9
        user = UserInfo(f"user-{one}", groups=("group-9", "group-of-nobody", "system:authenticated"))
        verb = ("get", "list", "create", "delete")[number % 4]
        request = RequestInfo(
            verb,
            "GET",
            "",
            is_resource=True,
            namespace=f"team-{one // 10}",
            resource="secrets",
            name=f"secret-{number}",
        )
        asked.append(Attributes(user, request))
    return asked


def _turn(provider: RbacAuthorization, asked: list[Attributes]) -> float:
    decide = provider.decide
    started = time.thread_time()
    for one in asked:
        decide(one)
    return time.thread_time() - started


def _memory(size: int) -> int:
    policy = make_policy(size)
    gc.collect()
    tracemalloc.start()
    provider = RbacAuthorization(policy=policy)
    used, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert provider.revision
    return used
