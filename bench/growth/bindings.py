"""What a policy of ten bindings takes, and one of a million: to load, in memory, and for a decision.

Every size in a process of its own, so that its memory can be seen. The index alone is made of manifests that are in
memory already; with files, what is measured is all that a start of the gateway does with them. A size is left out if
the one before says that it would take too long.
"""

from __future__ import annotations

import gc
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from bench.growth.curve import growth_plot, growth_row
from bench.growth.memory import resident
from bench.pace import pace
from bench.rbac import binding_of, make_policy, questions_for
from bench.table import Row
from ostiary.model import Attributes
from ostiary_gateway.providers.rbac import RbacAuthorization
from ostiary_gateway.wire.rbac import USER, Binding

SIZES = (10, 1_000, 100_000, pace(1_000_000, quick=100_000))
PER_FILE, FIRST, TURNS = 1_000, 50, 40
MOST_SECONDS = pace(60.0, quick=5.0)
MIB = 1024**2
_MANIFEST = """\
apiVersion: rbac.authorization.k8s.io/v1
kind: {kind}
metadata:
  name: {name}{namespace}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: ClusterRole
  name: {role}
subjects:
- apiGroup: rbac.authorization.k8s.io
  kind: {subject_kind}
  name: {subject}
---
"""

Figures = dict[str, float]


def run() -> Iterator[Row]:
    points = {size: _in_process("index", size) for size in SIZES}
    yield from _rows("from memory", points)
    files: dict[int, Figures] = {}
    for size in SIZES:
        if expected := _expected_seconds(files, size):
            text = f"left out: about {expected:,.0f} s, by the size before"
            yield Row(f"policy in files, {size:,} bindings", text)
            break
        with tempfile.TemporaryDirectory() as name:
            _write(Path(name), size)
            files[size] = _in_process("files", size, name)
    yield from _rows("from files", files)
    _draw(points, files)


def _expected_seconds(files: dict[int, Figures], size: int) -> float:
    """Zero if it is quick enough to be tried."""
    if not files:
        return 0.0
    before = max(files)
    seconds = files[before]["seconds"] * size / before
    return seconds if seconds > MOST_SECONDS else 0.0


def _rows(how: str, points: dict[int, Figures]) -> Iterator[Row]:
    sizes = list(points)

    def row(what: str, name: str, unit: str, scale: float = 1.0, at_most: float = 0.0) -> Row:
        values = [points[size][name] * scale for size in sizes]
        return growth_row(f"policy {how}: {what}, bindings", sizes, values, unit, at_most=at_most)

    yield row("loaded in", "seconds", "ms", 1e3)
    yield row("memory", "bytes", "MiB", 1 / MIB)
    yield row("a decision about somebody new", "first", "us", 1e6, 3.0)
    yield row("a decision about somebody asked about before", "again", "us", 1e6, 2.0)


def _draw(points: dict[int, Figures], files: dict[int, Figures]) -> None:
    def line(of: dict[int, Figures], name: str, scale: float) -> list[tuple[float, float]]:
        return [(size, figures[name] * scale) for size, figures in of.items()]

    times = {
        "somebody new": line(points, "first", 1e6),
        "somebody asked about before": line(points, "again", 1e6),
    }
    growth_plot("growth-bindings-decisions", "Time of a decision", "bindings", "us", times)
    loads = {"from memory": line(points, "seconds", 1.0), "from files": line(files, "seconds", 1.0)}
    growth_plot("growth-bindings-load", "Time to load a policy", "bindings", "seconds", loads, log_y=True)
    memory = {
        "from memory": line(points, "bytes", 1 / MIB),
        "from files": line(files, "bytes", 1 / MIB),
    }
    growth_plot("growth-bindings-memory", "Memory of a policy", "bindings", "MiB", memory, log_y=True)


# --- files ---


def _write(folder: Path, size: int) -> None:
    for start in range(0, size, PER_FILE):
        numbers = range(start, min(size, start + PER_FILE))
        (folder / f"bindings-{start:07}.yaml").write_text("".join(_manifest(binding_of(number)) for number in numbers))


def _manifest(binding: Binding) -> str:
    (subject,) = binding.subjects
    return _MANIFEST.format(
        kind=binding.kind,
        name=binding.name,
        namespace=f"\n  namespace: {binding.namespace}" if binding.namespace else "",
        role=binding.role_name,
        subject_kind="User" if subject.kind == USER else "Group",
        subject=subject.name,
    )


# --- one size, in a process of its own ---


def _in_process(how: str, size: int, folder: str = "") -> Figures:
    with tempfile.TemporaryDirectory() as cache:
        # Whatever is kept between starts: here everything is read for the first time.
        environment = {**os.environ, "XDG_CACHE_HOME": cache}
        command = [sys.executable, "-m", __name__, how, str(size), folder]
        output = subprocess.run(command, check=True, capture_output=True, text=True, env=environment).stdout
    figures: Figures = json.loads(output)
    return figures


def measure(how: str, size: int, folder: str) -> Figures:
    questions = questions_for(size)
    before = resident()
    policy = make_policy(size) if how == "index" else None
    gc.collect()
    began = time.perf_counter()
    if policy is None:
        provider = RbacAuthorization([folder], watch=False)
    else:
        provider = RbacAuthorization(policy=policy)
    seconds = time.perf_counter() - began
    gc.collect()
    used = resident() - before
    # One about each user, and so each for the first time. Of ten bindings there are not even ten users.
    of_users = {question.user.username: question for question in questions[:FIRST]}
    first = statistics.median(_turn(provider, [question]) for question in of_users.values())
    # The least of many short turns: neighbours only ever add.
    again = min(_turn(provider, questions) for _ in range(TURNS))
    assert {provider.decide(question).allowed for question in questions} == {True, False}
    return {"seconds": seconds, "bytes": used, "first": first, "again": again}


def _turn(provider: RbacAuthorization, questions: list[Attributes]) -> float:
    began = time.perf_counter()
    for question in questions:
        provider.decide(question)
    return (time.perf_counter() - began) / len(questions)


if __name__ == "__main__":
    print(json.dumps(measure(sys.argv[1], int(sys.argv[2]), sys.argv[3])))
