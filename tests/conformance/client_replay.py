"""Replays the verdicts of client-go: one kubeconfig, a few requests, and what came of them.

`KubeconfigCase` and `ExecCase` each give the lines in which we differ from the vector; nothing if we agree.
The server, the connections, TLS and the plugin are real. The clock is not: it is advanced between requests, so
that a plugin which failed may run again, as client-go runs it at once (docs/decisions/0003).
"""

from __future__ import annotations

import json
import os
from base64 import b64decode
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from ostiary.client.authenticator import Authenticator
from ostiary.client.connection import Connection, connect
from ostiary.client.exec.policy import AllowAll
from ostiary.client.metrics import NoMetrics
from ostiary.errors import OstiaryError
from ostiary_gateway.testing import FakeClock
from tests.conformance.any_host_server import AnyHostServer, Asked, fill_in, fixtures

NOW = datetime(2026, 6, 1, tzinfo=UTC)
# Does what the plugin of the vectors does, with fewer processes.
PLUGIN = """#!/bin/sh
cd "${0%/*}"; while [ ! -f stdout ]; do cd ..; done
echo run >> runs
printf '%s' "$KUBERNETES_EXEC_INFO" > info
for a in "$@"; do printf '%s\\0' "$a"; done > args
n=0; while read -r _; do n=$((n+1)); done < runs
env > env
if [ -f "stdout.$n" ]; then cat "stdout.$n"; else cat stdout; fi
read -r code < code || :
exit "$code"
"""
WRITTEN_BY_PLUGIN = ("runs", "info", "args", "env")


class Workshop:
    """The directory in which the cases lie, one after the other, and the server that they talk to."""

    def __init__(self, folder: Path, server: AnyHostServer) -> None:
        self.folder, self.server, self.pems = folder, server, fixtures()
        self._written: list[Path] = []
        for place in (folder, folder / "sub"):
            place.mkdir(parents=True, exist_ok=True)
            for name, text in self._beside(self.pems).items():
                (place / name).write_text(text)
        for place in (folder, folder / "sub", folder / "sub" / "deep"):
            place.mkdir(exist_ok=True)
            (place / "plugin").write_text(PLUGIN)
            (place / "plugin").chmod(0o755)

    @staticmethod
    def _beside(pems: dict[str, str]) -> dict[str, str]:
        return {
            "ca.crt": pems["ca"],
            "other.crt": pems["other_ca"],
            "client.crt": pems["cert1"],
            "client.key": pems["key1"],
            "token": "file-token",
            "token-newline": "file-token-2\n",
            "token-empty": "",
            "token-space": "file token",
        }

    def begin(self) -> None:
        """Forget the case before."""
        self.server.forget()
        for path in (*self._written, *(self.folder / name for name in WRITTEN_BY_PLUGIN)):
            path.unlink(missing_ok=True)
        self._written.clear()

    def write(self, name: str, text: str | dict[str, str]) -> Path:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        data = as_bytes(text)
        if data is None:
            assert isinstance(text, str)
            data = self.filled(text).encode("utf-8", "surrogatepass")
        path.write_bytes(data)
        self._written.append(path)
        return path

    def filled(self, text: str) -> str:
        return fill_in(text, folder=self.folder, pems=self.pems)

    def runs(self) -> int:
        return len(self.read("runs").splitlines())

    def read(self, name: str) -> str:
        path = self.folder / name
        return path.read_text(errors="surrogateescape") if path.exists() else ""


def as_bytes(text: object) -> bytes | None:
    """The bytes of a text that is not UTF-8, which the vectors write as base64."""
    return b64decode(text["base64"]) if isinstance(text, dict) else None


@dataclass(frozen=True)
class Attempt:
    """A few requests of one client: what each came to."""

    connection: Connection | None
    failures: list[str]
    statuses: list[int]


def attempt(workshop: Workshop, config: Path | None, *, requests: int, **options: Any) -> Attempt:
    """Connect and send; every refusal is noted, and the clock advanced after each request."""
    clock = FakeClock(NOW)
    failures: list[str] = []
    statuses: list[int] = []
    connection = None
    try:
        connection = connect(config, clock=clock, policy=AllowAll(), metrics=NoMetrics(), retry_on_401=False, **options)
        with connection.httpx() as client, workshop.server.leading_here():
            for _ in range(requests):
                try:
                    statuses.append(client.get("/api").status_code)
                except (OstiaryError, httpx.TransportError) as error:
                    failures.append(describe(error))
                clock.advance(minutes=2)
    except (OstiaryError, httpx.InvalidURL) as error:
        failures.append(describe(error))
    return Attempt(connection, failures, statuses)


def describe(error: Exception) -> str:
    return str(error).replace("\n", " / ")


# --- kubeconfig.jsonl ---


def kubeconfig_differences(workshop: Workshop, vector: dict[str, Any]) -> list[str]:
    """How our behaviour differs from the *vector*; empty if it does not."""
    workshop.begin()
    for name, text in vector["files"].items():
        workshop.write(name, text)
    version = vector.get("plugin_version", "v1")
    token = {"apiVersion": f"client.authentication.k8s.io/{version}", "kind": "ExecCredential"}
    workshop.write("stdout", json.dumps({**token, "status": {"token": "exec-token"}}))
    workshop.write("code", "0")
    names = vector.get("kubeconfig", list(vector["files"]))
    paths = [str(workshop.folder / name) for name in names]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KUBECONFIG", os.pathsep.join(paths))
        explicit = Path(paths[0]) if vector.get("explicit") else None
        done = attempt(workshop, explicit, requests=vector.get("requests", 1), context=vector.get("context"))
    return list(_kubeconfig_differences(workshop, vector, done))


def _kubeconfig_differences(workshop: Workshop, vector: dict[str, Any], done: Attempt) -> Iterator[str]:
    asked = workshop.server.asked
    if "refused" in vector:
        if asked:
            yield f"sent, where client-go refuses: {vector['refused']['error']}"
    elif done.failures or not asked:
        yield f"refused: {done.failures[0] if done.failures else 'nothing was sent'}"
        return
    else:
        assert done.connection is not None
        yield from _compared("namespace", vector.get("namespace", "default"), done.connection.namespace)
        yield from _sent_differences(workshop, vector, asked)
    if "exec" in vector or workshop.runs():
        yield from _exec_differences(workshop, vector.get("exec", {}), refused="refused" in vector)


def _sent_differences(workshop: Workshop, vector: dict[str, Any], asked: list[Asked]) -> Iterator[str]:
    sent, first = vector["sent"], asked[0]
    url = urlsplit(workshop.filled(vector["url"]))
    target = urlsplit(first.target) if "://" in first.target else None
    path, _, query = first.target.partition("?")
    yield from _compared("tls", sent["tls"], first.tls)
    yield from _compared("sni", sent.get("sni", "").lower(), (first.sni or "").lower())
    yield from _compared("host", sent.get("host", url.netloc).lower(), (first.header("Host") or "").lower())
    yield from _compared("path", sent["path"], target.path if target else path)
    yield from _compared("query", sent.get("query", ""), query)
    yield from _compared("headers", _lower(sent["headers"]), _lower(_headers(first)))
    yield from _compared("certificate", sent.get("certificate"), first.certificate)
    yield from _compared("gzip", sent.get("gzip", True), "gzip" in (first.header("Accept-Encoding") or ""))
    yield from _compared("dialed", sent.get("dialed", url.netloc).lower(), workshop.server.dialed[0].lower())
    yield from _compared("proxied", _lower_target(sent.get("proxied")), _lower_target(first.proxied))
    yield from _compared("absolute", sent.get("absolute", False), target is not None)
    yield from _compared("status", sent["status"], first.status)
    if len(asked) > 1:
        yield from _compared("later", _lower(vector.get("later", sent["headers"])), _lower(_headers(asked[1])))


def _lower_target(proxied: dict[str, str] | None) -> dict[str, str] | None:
    return proxied and {**proxied, "target": proxied["target"].lower()}


def _headers(asked: Asked) -> dict[str, list[str]]:
    return {**asked.all("Authorization"), **asked.all("Impersonate-")}


def _lower(headers: dict[str, list[str]]) -> dict[str, list[str]]:
    return {name.lower(): values for name, values in headers.items()}


def _exec_differences(workshop: Workshop, wanted: dict[str, Any], *, refused: bool) -> Iterator[str]:
    if not refused:
        yield from _compared("runs", wanted.get("runs", 0), workshop.runs())
    if wanted and workshop.runs():
        yield from _compared("info", workshop.filled(wanted.get("info", "")), workshop.read("info"))
        yield from _compared("args", wanted.get("args", []), workshop.read("args").split("\0")[:-1])
        yield from _compared("env", wanted.get("env", []), _ours(workshop.read("env")))


def _ours(environment: str) -> list[str]:
    return sorted(line for line in environment.splitlines() if line.startswith("OR_"))


def _compared(name: str, wanted: object, ours: object) -> Iterator[str]:
    if wanted != ours:
        yield f"{name}: {ours!r}, and client-go {wanted!r}"


# --- exec-output.jsonl ---


def exec_differences(workshop: Workshop, vector: dict[str, Any]) -> list[str]:
    workshop.begin()
    user = {"exec": vector["config"]}
    cluster = {"server": "https://api.example.test:6443", "certificate-authority": "ca.crt"}
    kubeconfig = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "a",
        "contexts": [{"name": "a", "context": {"cluster": "a", "user": "a"}}],
        "clusters": [{"name": "a", "cluster": cluster}],
        "users": [{"name": "a", "user": user}],
    }
    config = workshop.write("config", json.dumps(kubeconfig))
    outputs = [vector["stdout"], *vector.get("stdout_later", [])]
    for number, text in enumerate(outputs, 1):
        workshop.write(f"stdout.{number}", text)
    workshop.write("stdout", outputs[-1] if len(outputs) > 1 else outputs[0])
    workshop.write("code", str(vector.get("exit_code", 0)))
    done = attempt(workshop, config, requests=vector["requests"])
    return list(_exec_output_differences(workshop, vector, done))


def _exec_output_differences(workshop: Workshop, vector: dict[str, Any], done: Attempt) -> Iterator[str]:
    accepted = not done.failures and len(done.statuses) == vector["requests"]
    if accepted != vector["accepted"]:
        yield f"accepted: {accepted} ({done.failures[:1]}), and client-go: {vector.get('error', 'accepted')}"
        return
    yield from _compared("runs", vector["runs"], workshop.runs())
    answers = [answer for answer in vector.get("answers", []) if "status" in answer]
    ours = [
        {
            "status": asked.status,
            **({"authorization": value} if (value := asked.header("Authorization")) else {}),
            **({"certificate": asked.certificate} if asked.certificate else {}),
        }
        for asked in workshop.server.asked
    ]
    yield from _compared("answers", answers, ours)
    source = done.connection.source if done.connection else None
    latest = source.latest if isinstance(source, Authenticator) else None
    if "expiry" in vector and latest is not None:
        yield from _compared("token", vector.get("token", ""), latest.token.reveal() if latest.token else "")
        yield from _compared("expiry", _moment(vector["expiry"]), latest.expires_at)


def _moment(text: str | None) -> datetime | None:
    """The expiry of a vector. What Python's calendar does not hold is the nearest time that it does."""
    if text is None:
        return None
    if text.startswith("0000-"):
        return datetime.min.replace(microsecond=1, tzinfo=UTC)
    return datetime.max.replace(tzinfo=UTC) if text.startswith("10000-") else datetime.fromisoformat(text)
