"""The doors of other proxies: a question beside uvicorn and Starlette, and nginx that asks beside plain nginx.

The questions are those of nginx, with the configuration that ``ostiary-gateway door nginx`` prints. The other side only
sends the same bytes. As in `bench.gateway`: one core for what is measured with all its processes, the other for the
load and the backend; each sample is taken right after one of what it is compared with.
"""

from __future__ import annotations

import io
import json
import statistics
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path

from bench.gateway import LUA, PATHS, ROUNDS, SAMPLE_SECONDS, TOKENS, gateway, sample
from bench.peers import MEASURED_CORE, Peer, backend, free_port, nginx_command, proxies, started, uvicorn_command
from bench.table import Row
from ostiary_gateway.cli import main

SECRET = "the-secret-of-the-door"
CACHE = "5s"
# What programs send to an API, as an operator would choose it; by default 25 headers pass.
PASSED = ("Accept", "Accept-Encoding", "Content-Type", "User-Agent")
# Of Debian's libnginx-mod-http-set-misc, which hashes the tokens of the cache.
MODULES = "".join(
    f"load_module /usr/lib/nginx/modules/{name}.so;" for name in ("ndk_http_module", "ngx_http_set_misc_module")
)
_UVICORN = """
import json
from starlette.applications import Starlette
from starlette.responses import Response
from starlette.routing import Route

HEADERS = json.load(open("headers.json"))

async def question(request):
    return Response(b"", headers=HEADERS)

app = Starlette(routes=[Route("/doors/{door}/{upstream}", question)])
"""
_QUESTIONS = """
local requests, i = {}, 0
for line in io.lines("%s") do
  local token, path = string.match(line, "(%%S+) (%%S+)")
  requests[#requests + 1] = table.concat({
    "GET /doors/edge/b HTTP/1.1", "Host: gateway.test", "X-Ostiary-Door: %s", "X-Original-Method: GET",
    "X-Original-URI: " .. path, "X-Original-Host: gateway.test", "X-Original-Content-Length: 0",
    "X-Forwarded-For: 192.0.2.7", "User-Agent: kubectl/v1.33.1 (linux/amd64) kubernetes/8adc0f0",
    "Accept: application/json", "Authorization: Bearer " .. token, "Accept-Encoding: gzip", "", ""}, "\\r\\n")
end
request = function()
  i = i + 1
  return requests[i %% #requests + 1]
end
"""


def run() -> Iterator[Row]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        door = f"doors: [{{name: edge, proxy: nginx, callers: {{tokenFile: {folder}/secret}}}}]"
        (folder / "secret").write_text(SECRET)
        with backend(folder) as upstream, gateway(folder, upstream, extra=door) as ours:
            yield from _questions(folder, ours)
            with proxies(folder, upstream) as (plain, *_):
                yield from _through_nginx(folder, plain, ours, "nothing is cached")
                cached = ("--cache", CACHE, "--token-hash", "set-misc")
                yield from _through_nginx(folder, plain, ours, f"cached for {CACHE}", *cached)
                of_programs = [word for name in PASSED for word in ("--pass-header", name)]
                what = f"cached for {CACHE}, {len(PASSED)} headers pass"
                yield from _through_nginx(folder, plain, ours, what, *cached, *of_programs)


def _questions(folder: Path, ours: Peer) -> Iterator[Row]:
    script = folder / "questions.lua"
    script.write_text(_QUESTIONS % (folder / "gateway" / "targets", SECRET))
    with _uvicorn(folder) as theirs:
        _warm_up(ours, script)
        costs, ratios = [], []
        for _ in range(ROUNDS):
            base, answered = sample(theirs, script), sample(ours, script)
            costs.append(base.cpu_us / answered.cpu_us)
            ratios.append(answered.per_second / base.per_second)
    yield Row("forward-auth / uvicorn + Starlette, same bytes", f"{statistics.median(ratios):.2f}", ">= 2")
    yield Row("the same in CPU", f"{statistics.median(costs):.2f}", "-")


def _warm_up(peer: Peer, script: Path) -> None:
    """Until every request has come three times: a busy machine needs a while for that."""
    sent = 0.0
    while sent < 3 * TOKENS * PATHS:
        sent += sample(peer, script).per_second * SAMPLE_SECONDS


def _through_nginx(folder: Path, plain: Peer, ours: Peer, what: str, *options: str) -> Iterator[Row]:
    """nginx and the gateway share a core; what both use counts."""
    script = folder / "load.lua"
    script.write_text(LUA % (folder / "gateway" / "targets"))
    with _asking_nginx(folder / f"nginx{len(options)}", folder / "gateway" / "gateway.yaml", *options) as nginx:
        _warm_up(nginx, script)
        ratios, costs = [], []
        for _ in range(ROUNDS):
            base, before = sample(plain, script), ours.cpu_seconds()
            asked = sample(nginx, script)
            spent = (ours.cpu_seconds() - before) / (asked.per_second * SAMPLE_SECONDS) * 1e6
            ratios.append(asked.per_second / base.per_second)
            costs.append((asked.cpu_us + spent) / base.cpu_us)
    promised = ">= 0.65" if options else "-"
    yield Row(f"nginx that asks / plain nginx, {what}", f"{statistics.median(ratios):.2f}", promised)
    yield Row(f"the same in CPU, {what}", f"{statistics.median(costs):.2f}", "-")


@contextmanager
def _asking_nginx(folder: Path, config: Path, *options: str) -> Iterator[Peer]:
    folder.mkdir()
    port, out = free_port(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(io.StringIO()):
        main(["door", "nginx", "--config", str(config), "--listen", f"127.0.0.1:{port}", *options])
    text = out.getvalue().replace("keepalive 64;", "keepalive 256; keepalive_requests 1000000000;")
    # As many as there are different requests; the printed 256 fit the usual limit of descriptors.
    text = text.replace("open_file_cache max=256", f"open_file_cache max={TOKENS * PATHS}")
    command = nginx_command(folder, "asking", text, modules=MODULES if "set_sha1" in text else "")
    with started(command, core=MEASURED_CORE, port=port, cwd=folder) as process:
        yield Peer("nginx that asks", port, process.pid)


@contextmanager
def _uvicorn(folder: Path) -> Iterator[Peer]:
    home, port = folder / "starlette", free_port()
    home.mkdir()
    (home / "questions.py").write_text(_UVICORN)
    headers = {"X-Remote-User": "user-1", "X-Remote-Uid": "", "X-Remote-Group": "readers,staff"}
    (home / "headers.json").write_text(json.dumps(headers))
    with started(uvicorn_command("questions:app", port), core=MEASURED_CORE, port=port, cwd=home) as process:
        yield Peer("uvicorn", port, process.pid)
