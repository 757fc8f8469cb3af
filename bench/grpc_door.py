"""An Envoy that asks by gRPC: checks a second on one core, beside a server of grpcio that only sends the same bytes.

As in `bench.gateway`: one core for what is measured, the other for the load (`bench.check_load`); each sample is taken
right after one of what it is compared with. The gateway does all of its work: 100 tokens and 20 paths, RBAC behind the
decision cache, metrics, and an audit event per request in a file. Every call has an id, a time and a port of its own.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.gateway import PATHS, ROUNDS, SAMPLE_SECONDS, TOKENS, Sample, gateway
from bench.peers import LOAD_CORE, MEASURED_CORE, Peer, backend, free_port, started
from bench.table import Row
from ostiary_gateway.extauth.grpc import framed
from ostiary_gateway.wire.envoy_check import allowing_response
from tests.support.envoy_messages import check_request

SECRET = "the-secret-of-the-door"
PROMISED = 3000
# Longer than a round of `bench.gateway`: 2000 questions have to come three times before they are remembered.
WARM_UP = 3 * TOKENS * PATHS
_GRPCIO = """
import sys
from concurrent.futures import ThreadPoolExecutor
import grpc

ANSWER = open("answer", "rb").read()

class Checks(grpc.GenericRpcHandler):
    def service(self, details):
        return grpc.unary_unary_rpc_method_handler(lambda message, context: ANSWER)

server = grpc.server(ThreadPoolExecutor(4))
server.add_generic_rpc_handlers([Checks()])
server.add_insecure_port(f"127.0.0.1:{sys.argv[1]}")
server.start()
server.wait_for_termination()
"""


def run() -> Iterator[Row]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "secret").write_text(SECRET)
        port = free_port()
        door = f"doors: [{{name: edge, proxy: envoy-grpc, callers: {{tokenFile: {folder}/secret}}}}]"
        listen = f"grpc: {{address: '127.0.0.1:{port}'}}"
        with (
            backend(folder) as upstream,
            gateway(folder, upstream, listen=listen, extra=door) as process,
            _grpcio(folder) as theirs,
        ):
            ours = Peer("ostiary", port, process.pid)
            messages = _messages(folder)
            sent = 0.0
            while sent < WARM_UP:
                sent += _sample(ours, messages).per_second * SAMPLE_SECONDS
            yield from _compare(theirs, ours, messages)


def _compare(theirs: Peer, ours: Peer, messages: Path) -> Iterator[Row]:
    rates, ratios, costs, spent = [], [], [], []
    for _ in range(ROUNDS):
        base, answered = _sample(theirs, messages), _sample(ours, messages)
        rates.append(answered.per_second)
        ratios.append(answered.per_second / base.per_second)
        costs.append(answered.cpu_us / base.cpu_us)
        spent.append(answered.cpu_us)
    by_clock = f"{statistics.median(rates):,.0f} [{min(rates):,.0f}-{max(rates):,.0f}]"
    yield Row("Envoy gRPC: checks / s on one core", by_clock, f">= {PROMISED:,}")
    # On a machine that others use, too, the clock says how much of the core was left to us.
    of_cpu = f"{1e6 / statistics.median(spent):,.0f} ({statistics.median(spent):.0f} us each)"
    yield Row("the same in a second of CPU", of_cpu)
    yield Row("the same / grpcio that only sends the same bytes", f"{statistics.median(ratios):.2f}")
    yield Row("the same in CPU", f"{statistics.median(costs):.2f} x")


def _sample(peer: Peer, messages: Path) -> Sample:
    before = peer.cpu_seconds()
    load = [sys.executable, "-m", "bench.check_load", str(peer.port), str(SAMPLE_SECONDS), str(messages), SECRET]
    shown = subprocess.run(["taskset", "-c", LOAD_CORE, *load], capture_output=True, text=True, check=False)
    if shown.returncode:
        raise RuntimeError(f"{peer.name}: {shown.stderr}")
    answers, seconds = (float(word) for word in shown.stdout.split())
    return Sample(answers / seconds, 0.0, (peer.cpu_seconds() - before) / answers * 1e6)


def _messages(folder: Path) -> Path:
    """The messages of the same requests as in the other benchmarks, each with the five bytes of gRPC before it."""
    context = {"ostiary-door": "edge", "ostiary-upstream": "b"}
    parts = []
    for number, line in enumerate((folder / "gateway" / "targets").read_text().splitlines()):
        token, path = line.encode().split()
        headers = [
            *((":authority", b"gateway.test"), (":path", path), (":method", b"GET")),
            *(("user-agent", b"kubectl/v1.33.1 (linux/amd64) kubernetes/8adc0f0"),),
            ("authorization", b"Bearer " + token),
        ]
        message = check_request(headers, context=context, port=30000 + number, number=number)
        parts.append(framed(message))
    file = folder / "messages"
    file.write_bytes(b"".join(parts))
    return file


@contextmanager
def _grpcio(folder: Path) -> Iterator[Peer]:
    home, port = folder / "grpcio", free_port()
    home.mkdir()
    (home / "checks.py").write_text(_GRPCIO)
    identity = [(b"x-remote-user", b"user-1"), (b"x-remote-uid", b""), (b"x-remote-group", b"readers,staff")]
    (home / "answer").write_bytes(allowing_response(identity, [b"authorization"]))
    with started([sys.executable, "checks.py", str(port)], core=MEASURED_CORE, port=port, cwd=home) as process:
        yield Peer("grpcio", port, process.pid)
