"""What a large RBAC policy in files costs: its first load, one change, and what requests notice of it."""

from __future__ import annotations

import asyncio
import gc
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from bench.table import Row
from ostiary.model import Attributes, RequestInfo, UserInfo
from ostiary_gateway.providers.rbac import RbacAuthorization
from ostiary_gateway.providers.rbac.file_follow import FollowedFiles
from ostiary_gateway.providers.rbac.policy import ObjectChange, RbacPolicy, key_of
from ostiary_gateway.wire.rbac import Binding

PER_FILE, TURNS = 1_000, 9
GROUP = "rbac.authorization.k8s.io"
LOADS = ((10_000, "<= 0.5 s"), (100_000, "<= 5 s"))
MILLION = 1_000_000


def run() -> Iterator[Row]:
    for size, promised in LOADS:
        with TemporaryDirectory() as directory:
            _write(Path(directory), size)
            started = time.perf_counter()
            files = FollowedFiles([directory], defaults=True, watch=False)
            yield Row(f"first load of {size:,} bindings in files", f"{time.perf_counter() - started:.2f} s", promised)
            if size == LOADS[-1][0]:
                yield from _changes(files, Path(directory))
                yield _noticed(Path(directory))
    used = int(subprocess.run([sys.executable, "-c", _MEMORY], check=True, capture_output=True, text=True).stdout)
    yield Row("1,000,000 bindings, memory of each", f"{used / MILLION:.0f} bytes", "<= 1,500 bytes")


def _write(directory: Path, size: int) -> None:
    """As ``kubectl get -o yaml`` prints them, a thousand to a file."""
    for start in range(0, size, PER_FILE):
        text = "---\n".join(_manifest(number) for number in range(start, min(size, start + PER_FILE)))
        (directory / f"{start:07}.yaml").write_text(text)


def _manifest(number: int, user: str = "user") -> str:
    return f"""apiVersion: {GROUP}/v1
kind: RoleBinding
metadata:
  name: binding-{number}
  namespace: team-{number // 10}
roleRef:
  apiGroup: {GROUP}
  kind: ClusterRole
  name: {("view", "edit", "admin")[number % 3]}
subjects:
- apiGroup: {GROUP}
  kind: User
  name: {user}-{number}
"""


def _changes(files: FollowedFiles, directory: Path) -> Iterator[Row]:
    # As a worker does once it has started.
    gc.collect()
    gc.freeze()
    file = directory / "0000000.yaml"
    text = file.read_text()
    took, late, idle = [], [], []
    for turn in range(TURNS):
        file.write_text(text.replace("user-5\n", f"user-5-{turn}\n"))
        seconds, worst = _asked_meanwhile(files.policy, files.check_now)
        took.append(seconds)
        late.append(worst)
        idle.append(_asked_meanwhile(files.policy, lambda: time.sleep(0.05))[1])
    yield Row("one binding changed in a file of 1,000", f"{statistics.median(took) * 1e3:.0f} ms", "<= 50 ms")
    yield Row(
        "a request meanwhile is held up by, at most",
        f"{statistics.median(late) * 1e3:.1f} ms (idle {statistics.median(idle) * 1e3:.1f} ms)",
        "<= 5 ms",
    )
    binding = next(item for item in files.policy.own_objects() if isinstance(item, Binding))
    took = [_timed(lambda: _remove_and_add(files.policy, binding)) / 2 for _ in range(TURNS * 10)]
    yield Row("one binding changed by a watch", f"{statistics.median(took) * 1e6:.0f} us")


def _remove_and_add(policy: RbacPolicy, binding: Binding) -> None:
    policy.apply([ObjectChange(key_of(binding), None)])
    policy.apply([ObjectChange(key_of(binding), binding)])


def _asked_meanwhile(policy: RbacPolicy, work: Callable[[], object]) -> tuple[float, float]:
    """How long *work* takes, and how late at worst an answer is to one who asks every millisecond."""
    stop, late = threading.Event(), [0.0]
    question = _question(5)

    def ask() -> None:
        while not stop.is_set():
            started = time.perf_counter()
            time.sleep(0.001)
            policy.index.decide(question.user, question.request)
            late.append(time.perf_counter() - started - 0.001)

    thread = threading.Thread(target=ask)
    thread.start()
    seconds = _timed(work)
    stop.set()
    thread.join()
    return seconds, max(late)


def _noticed(directory: Path) -> Row:
    """From the end of the write until the decision is another one, with a provider that follows its files."""
    provider = RbacAuthorization([directory])
    file = directory / "0001000.yaml"
    text, took = file.read_text(), []
    for turn in range(TURNS):
        user = f"late-{turn}"
        question = _question(1005, user)
        assert not provider.decide(question).allowed
        file.write_text(text.replace("user-1005\n", f"{user}-1005\n"))
        started = time.perf_counter()
        _wait_until_allowed(provider, question)
        took.append(time.perf_counter() - started)
    asyncio.run(provider.close())
    return Row("a file written until its change decides", f"{statistics.median(took) * 1e3:.0f} ms", "<= 100 ms")


def _wait_until_allowed(provider: RbacAuthorization, question: Attributes) -> None:
    until = time.monotonic() + 30
    while not provider.decide(question).allowed and time.monotonic() < until:
        time.sleep(0.0005)


def _question(number: int, user: str = "user") -> Attributes:
    request = RequestInfo("get", "GET", "", True, namespace=f"team-{number // 10}", resource="pods", name="x")
    return Attributes(UserInfo(f"{user}-{number}"), request)


def _timed(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


# In a process of its own, so that nothing else is counted.
_MEMORY = "from bench.rbac_files import print_memory; print_memory()"


def print_memory() -> None:
    from bench.rbac import make_policy

    before = _resident()
    provider = RbacAuthorization(policy=make_policy(MILLION))
    gc.collect()
    print(_resident() - before)
    assert provider.revision == 1


def _resident() -> int:
    with open("/proc/self/statm") as status:
        return int(status.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
