"""A million audit events, replayed against a policy and made roles of: the whole commands, in CPU time of one core.

Beside them, in the same run, what it takes to do no more than parse each line: with Python's own ``json``, and typed.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from bench.pace import pace
from bench.table import Row
from ostiary.model import Decision, UserInfo, Verdict
from ostiary_gateway.audit.auditor import Auditor, Prepared
from ostiary_gateway.interfaces.attributes import RequestLine
from ostiary_gateway.wire.audit import decode_event
from ostiary_gateway.wire.audit_policy import DEFAULT_POLICY
from ostiary_gateway.wire.request_info import request_info

EVENTS, MOST_SECONDS = pace(1_000_000, quick=10_000), 30
USERS, NAMESPACES = 200, 50

CONFIG = """\
apiVersion: ostiary.dev/v1
kind: Gateway
listen: {address: "127.0.0.1:8443"}
identity: [{name: one, type: single_user, username: somebody}]
authorization: {chain: [{name: rbac, type: rbac, paths: [policy.yaml]}]}
upstreams: [{name: cluster, server: "http://127.0.0.1:1", attributes: kubernetes}]
"""


def run() -> Iterator[Row]:
    with tempfile.TemporaryDirectory() as directory:
        log = _write_log(Path(directory), EVENTS)
        size = log.stat().st_size / 1024**2
        plain = _cpu_seconds(lambda: _parse(log, json.loads))
        typed = _cpu_seconds(lambda: _parse(log, decode_event))
        yield Row(f"json.loads of each of {EVENTS:,} lines ({size:.0f} MiB)", f"{plain:.1f} s")
        yield Row("typed decoding of each", f"{typed:.1f} s")
        for what, arguments, code in (
            ("ostiary-gateway policy replay", ("replay", "--config", "gateway.yaml", "audit.log"), 1),
            ("ostiary-gateway policy suggest", ("suggest", "--config", "gateway.yaml", "audit.log"), 0),
        ):
            took = _command(Path(directory), arguments, code)
            measured = f"{took:.1f} s, {took / plain:.2f} x json.loads"
            yield Row(what, measured, f"<= {MOST_SECONDS} s")


def _cpu_seconds(work: object) -> float:
    assert callable(work)
    started = time.process_time()
    work()
    return time.process_time() - started


def _parse(log: Path, decode: object) -> None:
    assert callable(decode)
    with log.open("rb") as opened:
        for line in opened:
            decode(line)


def _command(directory: Path, arguments: tuple[str, ...], code: int) -> float:
    """CPU seconds of the whole command, its start included."""
    before = os.times()
    done = subprocess.run(
        [sys.executable, "-m", "ostiary_gateway", "policy", *arguments],
        cwd=directory,
        stdout=subprocess.DEVNULL,
        check=False,
    )
    assert done.returncode == code, done.returncode
    after = os.times()
    return after.children_user + after.children_system - before.children_user - before.children_system


# --- the log ---


class _File:
    """An audit sink that writes a file and nothing else."""

    dropped = 0

    def __init__(self, path: Path) -> None:
        self._file = path.open("w")
        self.accept = self._file.write

    async def flush(self) -> None:
        self._file.flush()

    def close(self) -> None:
        self._file.close()


def _write_log(directory: Path, events: int) -> Path:
    """What kubectl, controllers and a dashboard ask: half of the targets are new, as objects and versions are."""
    dice, log = random.Random(17), directory / "audit.log"
    (directory / "gateway.yaml").write_text(CONFIG)
    (directory / "policy.yaml").write_text(_policy())
    sink = _File(log)
    auditor = Auditor(DEFAULT_POLICY, [sink])  # type: ignore[list-item]
    users = [UserInfo(f"user-{number}", f"uid-{number}", (f"team-{number % 20}", "staff")) for number in range(USERS)]
    origin = auditor.origin(("10.0.0.1",), "kubectl/v1.34.0 (linux/amd64) kubernetes/0000000")
    kept: dict[tuple[int, str], Prepared] = {}
    for number in range(events):
        who, (method, target) = dice.randrange(USERS), _target(dice, number)
        prepared = kept.get((who, method + target))
        if prepared is None:
            prepared = _prepare(auditor, users[who], method, target)
            if len(kept) < 20_000:
                kept[who, method + target] = prepared
        prepared.complete(auditor.audit_id(), origin, 200, received_at=0.0, at=0.002)
    sink.close()
    return log


def _prepare(auditor: Auditor, user: UserInfo, method: str, target: str) -> Prepared:
    path, _, query = target.partition("?")
    reason = f'RBAC: allowed by ClusterRoleBinding "staff" of ClusterRole "staff" to User "{user.username}"'
    info, decision = request_info(RequestLine(method, path, query)), Decision(Verdict.ALLOW, reason)
    prepared = auditor.prepare(info, user, request_uri=target, decision=decision)
    assert prepared is not None
    return prepared


def _target(dice: random.Random, number: int) -> tuple[str, str]:
    namespace = f"/namespaces/team-{dice.randrange(NAMESPACES)}"
    match dice.randrange(10):
        case 0 | 1:
            return "GET", f"/api/v1{namespace}/pods/web-{number}"
        case 2:
            return "PUT", f"/apis/coordination.k8s.io/v1{namespace}/leases/holder-{number % 50}"
        case 3:
            return "GET", f"/apis/apps/v1{namespace}/deployments?limit=500"
        case 4:
            return "GET", f"/api/v1{namespace}/pods?watch=true&resourceVersion={number}&labelSelector=app%3Dweb"
        case 5:
            return "PATCH", f"/apis/apps/v1{namespace}/deployments/shop-{number}/status"
        case 6:
            return "POST", f"/api/v1{namespace}/events"
        case 7:
            return "GET", f"/api/v1{namespace}/configmaps/settings"
        case 8:
            return "GET", f"/apis/batch/v1{namespace}/jobs"
        case _:
            return "GET", "/apis/apps/v1" if number % 2 else "/openapi/v2"


def _policy() -> str:
    """Half of the users have what they used, so that a replay has differences to tell."""
    subjects = "\n".join(f'- {{kind: User, name: "user-{number}"}}' for number in range(0, USERS, 2))
    return f"""\
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {{name: staff}}
rules:
- {{verbs: ["*"], apiGroups: ["*"], resources: ["*"]}}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {{name: staff}}
roleRef: {{apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: staff}}
subjects:
{subjects}
"""
