"""HAProxy with the decisions of the gateway, and HAProxy that asks about each request, beside plain nginx.

HAProxy runs what ``ostiary-gateway door haproxy`` prints. As in `bench.gateway`: one core for what is measured with all
its processes, the gateway included; each sample is taken right after one of plain nginx.
"""

from __future__ import annotations

import asyncio
import io
import statistics
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path

from bench.gateway import LUA, PATHS, ROUNDS, SAMPLE_SECONDS, TOKENS, gateway, sample, status_of
from bench.pace import pace
from bench.peers import MEASURED_CORE, Peer, backend, free_port, proxies, started
from bench.table import Row
from ostiary_gateway.cli import main
from ostiary_gateway.cli.proxy_config.command import SPOE_FILE
from ostiary_gateway.interfaces.token_store import RevocationKind
from ostiary_gateway.sessions import Tokens
from ostiary_gateway.stores.sqlite.token_store import SqliteTokenStore

SECRET = "the-secret-of-the-door"
REVOCATIONS = pace(20, quick=2)


def run() -> Iterator[Row]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "secret").write_text(SECRET)
        with (
            backend(folder) as upstream,
            gateway(folder, upstream, extra=_doors(folder)) as ours,
            proxies(folder, upstream) as (plain, *_),
        ):
            script = folder / "load.lua"
            script.write_text(LUA % (folder / "gateway" / "targets"))
            with _haproxy(folder, "asks") as asking:
                yield from _compared(plain, asking, ours, script, "asked about each request", "-")
            with _haproxy(folder, "keeps") as keeping:
                yield from _compared(plain, keeping, ours, script, "with decisions", "<= 1.40")
                yield from _revocations(folder, keeping)


def _doors(folder: Path) -> str:
    callers = f"callers: {{tokenFile: {folder}/secret}}"
    asks = f'{{name: asks, proxy: haproxy, agent: {{address: "127.0.0.1:{free_port()}"}}, {callers}}}'
    decisions = f"decisions: {{socket: {folder}/haproxy.sock}}"
    keeps = f'{{name: keeps, proxy: haproxy, agent: {{address: "127.0.0.1:{free_port()}"}}, {decisions}, {callers}}}'
    return f"doors: [{asks}, {keeps}]"


@contextmanager
def _haproxy(folder: Path, door: str) -> Iterator[Peer]:
    home, port = folder / door, free_port()
    home.mkdir()
    write_config(home, folder / "gateway" / "gateway.yaml", door, port)
    with started(
        ["haproxy", "-db", "-f", str(home / "haproxy.cfg")], core=MEASURED_CORE, port=port, cwd=home
    ) as process:
        yield Peer("haproxy", port, process.pid)


def write_config(home: Path, gateway_config: Path, door: str, port: int, *, more: Sequence[str] = ()) -> Path:
    """What ``ostiary-gateway door haproxy`` prints, with *more* options, on one core as the others have."""
    options = ["--config", str(gateway_config), "--door", door, "--listen", f"127.0.0.1:{port}", *more]
    texts = []
    for kind in ([], ["--spoe"]):
        out = io.StringIO()
        with redirect_stdout(out), redirect_stderr(io.StringIO()):
            main(["door", "haproxy", *options, *kind])
        texts.append(out.getvalue())
    (home / "spoe.conf").write_text(texts[1])
    text = texts[0].replace(SPOE_FILE, str(home / "spoe.conf")).replace("global\n", "global\n    nbthread 1\n")
    file = home / "haproxy.cfg"
    file.write_text(text)
    return file


def _compared(plain: Peer, haproxy: Peer, ours: Peer, script: Path, what: str, promised: str) -> Iterator[Row]:
    """HAProxy and the gateway share a core; what both use counts."""
    sent = 0.0
    while sent < 3 * TOKENS * PATHS:
        sent += sample(haproxy, script).per_second * SAMPLE_SECONDS
    ratios, costs = [], []
    for _ in range(ROUNDS):
        base, before = sample(plain, script), ours.cpu_seconds()
        carried = sample(haproxy, script)
        spent = (ours.cpu_seconds() - before) / (carried.per_second * SAMPLE_SECONDS) * 1e6
        ratios.append(carried.per_second / base.per_second)
        costs.append((carried.cpu_us + spent) / base.cpu_us)
    yield Row(f"CPU, HAProxy {what} / plain nginx", f"{statistics.median(costs):.2f}", promised)
    yield Row(f"requests / s, HAProxy {what} / plain nginx", f"{statistics.median(ratios):.2f}", "-")


def _revocations(folder: Path, haproxy: Peer) -> Iterator[Row]:
    """From the call that revokes, made in this process, to the first 401 of HAProxy."""
    home = folder / "gateway"
    tokens = [line.split()[0] for line in (home / "targets").read_text().splitlines()[:REVOCATIONS]]
    lags = [asyncio.run(_lag(home / "tokens.db", haproxy.port, token)) for token in tokens]
    text = f"median {statistics.median(lags) * 1000:.1f} ms, worst {max(lags) * 1000:.1f} ms"
    yield Row("revoke in another process to HAProxy's first refusal", text, "< 10 ms")


async def _lag(path: Path, port: int, token: str) -> float:
    store = SqliteTokenStore(path)
    tokens = Tokens(store)
    stored = await tokens.find(token)
    assert stored is not None
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    target = "/api/v1/namespaces/team-0/pods/web-0"
    request = f"GET {target} HTTP/1.1\r\nHost: gateway.test\r\nAuthorization: Bearer {token}\r\n\r\n"
    loop = asyncio.get_running_loop()
    for _ in range(5):
        assert await status_of(reader, writer, request) == 200
        await asyncio.sleep(0.02)
    began = loop.time()
    await tokens.revoke(RevocationKind.SESSION, stored.session.id)
    try:
        while await status_of(reader, writer, request) != 401:
            pass
        return loop.time() - began
    finally:
        writer.close()
        await store.close()
