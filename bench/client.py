"""What credentials cost a client, and how often the plugin runs, beside the other Python clients."""

from __future__ import annotations

import asyncio
import json
import os
import ssl
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import trustme

import ostiary
from bench.pace import pace
from bench.table import Row

TURNS, WARM_UP, REQUESTS, CALLERS = pace(120, quick=12), 10, 10, 64
PATH = "/api/v1/namespaces/default/pods"
TOKEN = "t0ken-"
# The HTTP clients that are measured, and what a signed request of each may cost beside a bare one.
PAIRS = {"httpx": "<= 1.05", "httpx2": "<= 1.05", "requests": "<= 1.05", "urllib3": "<= 1.05", "aiohttp": "<= 1.08"}


@dataclass
class Rig:
    """A server process, a plugin whose runs are counted, and a kubeconfig for both."""

    folder: Path
    url: str
    authority: bytes
    kubeconfig: Path

    def plugin_says(self, token: str) -> None:
        answer = {
            "kind": "ExecCredential",
            "apiVersion": "client.authentication.k8s.io/v1beta1",
            "status": {"token": token, "expirationTimestamp": "2999-01-01T00:00:00Z"},
        }
        (self.folder / "answer").write_text(json.dumps(answer))

    @property
    def runs(self) -> int:
        return (self.folder / "runs").read_text().count("\n")

    def server_wants(self, token: str) -> None:
        import urllib.request

        context = ssl.create_default_context(cadata=self.authority.decode())
        request = urllib.request.Request(f"{self.url}/token", data=token.encode(), method="PUT")
        urllib.request.urlopen(request, context=context).read()

    def fresh(self) -> None:
        """No runs so far, any token is good."""
        (self.folder / "runs").write_text("")
        self.plugin_says(TOKEN + "1")
        self.server_wants("")


@contextmanager
def rig() -> Iterator[Rig]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        authority = trustme.CA()
        authority.issue_cert("localhost").private_key_and_cert_chain_pem.write_to_path(folder / "server.pem")
        command = [sys.executable, "-m", "bench.server", str(folder / "server.pem")]
        server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert server.stdout is not None
        url = f"https://localhost:{int(server.stdout.readline())}"
        plugin = folder / "plugin"
        plugin.write_text(f"#!/bin/sh\necho run >> {folder}/runs\nsleep 0.2\ncat {folder}/answer\n")
        plugin.chmod(0o755)
        exec_ = {
            "apiVersion": "client.authentication.k8s.io/v1beta1",
            "command": str(plugin),
            "interactiveMode": "Never",
        }
        pem = authority.cert_pem.bytes()
        (folder / "authority.pem").write_bytes(pem)
        write_kubeconfig(folder / "config", url, pem, {"exec": exec_})
        made = Rig(folder, url, pem, folder / "config")
        made.fresh()
        try:
            yield made
        finally:
            server.communicate("")


def write_kubeconfig(path: Path, server: str, authority: bytes, user: Mapping[str, object]) -> Path:
    cluster = {"server": server, "certificate-authority-data": b64encode(authority).decode()}
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "bench",
        "clusters": [{"name": "bench", "cluster": cluster}],
        "users": [{"name": "bench", "user": user}],
        "contexts": [{"name": "bench", "context": {"cluster": "bench", "user": "bench", "namespace": "default"}}],
    }
    path.write_text(json.dumps(config))
    return path


def run() -> Iterator[Row]:
    with rig() as made:
        for name, pair in pairs(made).items():
            made.fresh()
            yield Row(f"{name}: signed / bare", _ratio(*pair), PAIRS[name])
    for name in CLIENTS:
        for what in ("cold", "wave"):
            yield _counted_apart(name, what)
    yield Row("import ostiary, over the bare interpreter", _import_cost(), "<= 15 ms")


def _counted_apart(name: str, what: str) -> Row:
    """In a process of its own: clients of one process share what they have (and one of them can crash it)."""
    command = [sys.executable, "-m", "bench.client", name, what]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    said = done.stdout.strip() if done.returncode == 0 else f"ended with {done.returncode}"
    asked = f"{CALLERS} first requests at once" if what == "cold" else "16 requests meet a 401"
    return Row(f"{name}: {asked}", said, "1 run, all succeed" if name.startswith("ostiary") else "-")


# --- what a signed request costs ---


def _ratio(bare: Callable[[], None], signed: Callable[[], None]) -> str:
    """The ratio of medians over many short turns, one right after the other: the machine is shared.

    Of two turns of the same client the scheduler can make one twice as long; of a hundred it cannot
    move the median much.
    """
    wall: dict[Callable[[], None], list[float]] = {bare: [], signed: []}
    spent: dict[Callable[[], None], list[float]] = {bare: [], signed: []}
    for turn in range(TURNS):
        for function in (bare, signed) if turn % 2 else (signed, bare):
            before = time.process_time()
            wall[function].append(_timed(function))
            spent[function].append(time.process_time() - before)
    slow, quick = (statistics.median(wall[function][WARM_UP:]) / REQUESTS * 1e6 for function in (signed, bare))
    cpu = statistics.median(spent[signed][WARM_UP:]) / statistics.median(spent[bare][WARM_UP:])
    return f"{slow / quick:.3f} ({slow:.0f} / {quick:.0f} us; CPU {cpu:.3f})"


def _timed(function: Callable[[], object]) -> float:
    started = time.perf_counter()
    function()
    return time.perf_counter() - started


def pairs(made: Rig) -> dict[str, tuple[Callable[[], None], Callable[[], None]]]:
    import httpx
    import httpx2
    import requests
    import urllib3

    context = ssl.create_default_context(cadata=made.authority.decode())
    header = {"Authorization": f"Bearer {TOKEN}1"}
    connection = ostiary.connect(made.kubeconfig)
    bare_session = requests.Session()
    bare_session.headers["Authorization"] = header["Authorization"]
    authority = str(made.folder / "authority.pem")
    pool, signed_pool = urllib3.PoolManager(ssl_context=context, headers=header), connection.urllib3()
    return {
        "httpx": (
            _loop(httpx.Client(verify=context, base_url=made.url, headers=header).get),
            _loop(connection.httpx().get),
        ),
        "httpx2": (
            _loop(httpx2.Client(verify=context, base_url=made.url, headers=header).get),
            _loop(connection.httpx(library=httpx2).get),
        ),
        "requests": (
            _loop(lambda path: bare_session.get(made.url + path, verify=authority)),
            _loop(connection.requests().get),
        ),
        "urllib3": (
            _loop(lambda path: pool.request("GET", made.url + path)),
            _loop(lambda path: signed_pool.request("GET", path)),
        ),
        "aiohttp": _aiohttp_pair(made, connection, context, header),
    }


def _loop(get: Callable[[str], object]) -> Callable[[], None]:
    def run_all() -> None:
        for _ in range(REQUESTS):
            get(PATH)

    return run_all


def _aiohttp_pair(
    made: Rig, connection: ostiary.Connection, context: ssl.SSLContext, header: dict[str, str]
) -> tuple[Callable[[], None], Callable[[], None]]:
    import aiohttp

    loop = asyncio.new_event_loop()

    async def make() -> tuple[Any, Any]:
        connector = aiohttp.TCPConnector(ssl=context)
        return aiohttp.ClientSession(made.url, connector=connector, headers=header), connection.aiohttp()

    sessions = loop.run_until_complete(make())

    def runner(session: Any) -> Callable[[], None]:
        async def run_all() -> None:
            for _ in range(REQUESTS):
                async with session.get(PATH) as answer:
                    await answer.read()

        return lambda: loop.run_until_complete(run_all())

    return runner(sessions[0]), runner(sessions[1])


# --- how often the plugin runs ---

Call = Callable[[], bool]


def _cold(made: Rig, make: Callable[[Rig], Call]) -> str:
    good = _together(make(made), CALLERS)
    return f"{made.runs} runs, {good} of {CALLERS} succeed"


def _wave(made: Rig, make: Callable[[Rig], Call]) -> str:
    call = make(made)
    call()
    made.plugin_says(TOKEN + "2")
    made.server_wants(TOKEN + "2")
    before = made.runs
    good = _together(call, 16)
    return f"{made.runs - before} runs, {good} of 16 succeed"


def _together(call: Call, count: int) -> int:
    barrier = threading.Barrier(count)

    def one(_: int) -> bool:
        barrier.wait()
        try:
            return call()
        except Exception:
            return False

    with ThreadPoolExecutor(count) as pool:
        return sum(pool.map(one, range(count)))


def _ostiary(made: Rig) -> Call:
    client = ostiary.connect(made.kubeconfig).httpx()
    return lambda: client.get(PATH).status_code == 200


def _ostiary_kubernetes(made: Rig) -> Call:
    from kubernetes.client import CoreV1Api

    api = CoreV1Api(ostiary.connect(made.kubeconfig).kubernetes())
    return lambda: len(api.list_namespaced_pod("default").items) == 5


def _kubernetes(made: Rig) -> Call:
    from kubernetes import config
    from kubernetes.client import CoreV1Api

    api = CoreV1Api(config.new_client_from_config(str(made.kubeconfig)))  # type: ignore[no-untyped-call]
    return lambda: len(api.list_namespaced_pod("default").items) == 5


def _lightkube(made: Rig) -> Call:
    from lightkube import Client, KubeConfig
    from lightkube.resources.core_v1 import Pod

    client = Client(KubeConfig.from_file(str(made.kubeconfig)))
    # msgspec builds its decoder at the first use, which is not what is measured here (and not thread-safe).
    return lambda: len(list(client.list(Pod))) == 5


def _in_loop(make: Callable[[], Any], call: Callable[[Any], Any]) -> Call:
    """An async client for callers in threads: one loop in a thread of its own."""
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, daemon=True).start()
    client = asyncio.run_coroutine_threadsafe(make(), loop).result()
    return lambda: bool(asyncio.run_coroutine_threadsafe(call(client), loop).result())


def _kubernetes_asyncio(made: Rig) -> Call:
    from kubernetes_asyncio import client, config

    async def make() -> Any:
        return client.CoreV1Api(await config.new_client_from_config(str(made.kubeconfig)))

    async def call(api: Any) -> bool:
        return len((await api.list_namespaced_pod("default")).items) == 5

    return _in_loop(make, call)


def _kr8s(made: Rig) -> Call:
    import kr8s.asyncio

    async def make() -> Any:
        return await kr8s.asyncio.api(kubeconfig=str(made.kubeconfig))

    async def call(api: Any) -> bool:
        async with api.call_api("GET", version="v1", namespace="default", url="pods") as answer:
            return bool(answer.status_code == 200)

    return _in_loop(make, call)


# --- import ---


def _import_cost() -> str:
    def started(code: str) -> float:
        return _timed(lambda: subprocess.run([sys.executable, "-I", "-c", code], check=True, env=dict(os.environ)))

    bare, ours = [], []
    for _ in range(15):
        bare.append(started("pass"))
        ours.append(started("import ostiary"))
    cost = (statistics.median(ours) - statistics.median(bare)) * 1000
    return f"{cost:.1f} ms (bare {statistics.median(bare) * 1000:.1f} ms)"


CLIENTS: dict[str, Callable[[Rig], Call]] = {
    "ostiary with httpx": _ostiary,
    "ostiary with kubernetes": _ostiary_kubernetes,
    "kubernetes": _kubernetes,
    "kubernetes_asyncio": _kubernetes_asyncio,
    "lightkube": _lightkube,
    "kr8s": _kr8s,
}


if __name__ == "__main__":
    with rig() as one_rig:
        print({"cold": _cold, "wave": _wave}[sys.argv[2]](one_rig, CLIENTS[sys.argv[1]]), flush=True)
    # Loops in threads of their own would hold up the end.
    os._exit(0)
