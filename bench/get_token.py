"""What `ostiary get-token` adds to every kubectl command, when a credential lies ready.

Against the bare interpreter of the same environment, and within a whole kubectl against one with a static token. The
processes of a pair take turns, one right after the other: the machine is shared.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

from bench.client import rig, write_kubeconfig
from bench.pace import pace
from bench.processes import alternating
from bench.table import Row
from ostiary.cli.login.platforms.credential import WorkloadToken, cache_for
from ostiary.cli.login.platforms.proof import PlatformChoice
from ostiary.cli.login.sessions import FILE, GatewayAccount, Sessions, SignInGrant
from ostiary.core.clock import SYSTEM_CLOCK
from ostiary.model import Secret
from tests.support.kubectl import find_kubectl

TURNS, KUBECTL_TURNS = pace(60, quick=3), pace(25, quick=2)
SERVER = "https://gateway.example"
# As it is installed: what starts it is a part of what it costs.
PROGRAM = Path(sys.executable).with_name("ostiary")


def run() -> Iterator[Row]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with _environment(folder) as env:
            _sign_in(SERVER)
            yield from _against_the_interpreter(env)
            yield from _of_a_pod(folder, env)
            yield from _within_kubectl(folder, env)


def _against_the_interpreter(env: Mapping[str, str]) -> Iterator[Row]:
    commands = {
        "bare": [sys.executable, "-I", "-c", "pass"],
        "ours": [str(PROGRAM), "get-token", "--server", SERVER],
    }
    took = alternating(commands, env, TURNS)
    bare, ours = took["bare"], took["ours"]
    yield Row("bare interpreter, `python -I -c pass`", f"{bare.wall * 1000:.1f} ms")
    yield Row("cached get-token / bare interpreter", f"{ours.wall / bare.wall:.2f}", "<= 1.2")
    yield Row("the same, in CPU time", f"{ours.cpu / bare.cpu:.2f}", "<= 1.2")


def _of_a_pod(folder: Path, env: Mapping[str, str]) -> Iterator[Row]:
    """A projected token of real length, and the sealed file that was written with it."""
    token_file = folder / "projected"
    token_file.write_text("eyJ" + "x" * 1100)
    words = ["--server", SERVER, "--from", "kubernetes", "--token-file", str(token_file)]
    choice = PlatformChoice(SERVER, "kubernetes", token_file=str(token_file))
    cache = cache_for(choice, clock=SYSTEM_CLOCK)
    assert cache is not None
    end = SYSTEM_CLOCK.now() + timedelta(hours=1)
    cache.save(WorkloadToken(Secret("t0ken-" + "x" * 40), end, "kubernetes", "robot", str(token_file)))
    commands = {"bare": [sys.executable, "-I", "-c", "pass"], "ours": [str(PROGRAM), "get-token", *words]}
    took = alternating(commands, env, TURNS)
    bare, ours = took["bare"], took["ours"]
    yield Row("cached get-token --from kubernetes / bare interpreter", f"{ours.wall / bare.wall:.2f}", "<= 1.2")
    yield Row("the same in CPU time, --from kubernetes", f"{ours.cpu / bare.cpu:.2f}", "<= 1.2")


def _within_kubectl(folder: Path, env: Mapping[str, str]) -> Iterator[Row]:
    kubectl = find_kubectl()
    if kubectl is None:
        return
    with rig() as made:
        token = _sign_in(made.url)
        made.server_wants(token)
        plugin = {
            "apiVersion": "client.authentication.k8s.io/v1beta1",
            "command": str(PROGRAM),
            "args": ["get-token", "--server", made.url],
            "interactiveMode": "Never",
        }
        users: dict[str, dict[str, object]] = {"static": {"token": token}, "plugin": {"exec": plugin}}
        commands = {}
        for name, user in users.items():
            config = write_kubeconfig(folder / name, made.url, made.authority, user)
            commands[name] = [kubectl, "--kubeconfig", str(config), "get", "--raw", "/version"]
        took = alternating(commands, env, KUBECTL_TURNS)
    yield Row("kubectl, static token", f"{took['static'].wall * 1000:.0f} ms")
    yield Row("kubectl with get-token / static token", f"{took['plugin'].wall / took['static'].wall:.2f}", "<= 1.4")


@contextmanager
def _environment(folder: Path) -> Iterator[dict[str, str]]:
    """A home of its own, for the processes and for us."""
    before = os.environ.get("XDG_STATE_HOME")
    os.environ["XDG_STATE_HOME"] = str(folder)
    # Compiled once, as an installed package is, whatever this environment says of that.
    compiled = {**os.environ, "PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": str(folder / "compiled")}
    try:
        yield compiled
    finally:
        os.environ.pop("XDG_STATE_HOME")
        if before is not None:
            os.environ["XDG_STATE_HOME"] = before


def _sign_in(server: str) -> str:
    """Put a credential where it lies ready; returns its token."""
    end = SYSTEM_CLOCK.now() + timedelta(hours=1)
    grant = SignInGrant(Secret("t0ken-" + "x" * 40), end, Secret("renewal"), "s1", end, "ann")
    Sessions(GatewayAccount(server)).save(grant, store=FILE, authorities_pem=None)
    return grant.token.reveal()


if __name__ == "__main__":
    assert shutil.which("kubectl"), "without kubectl only half of it can be measured"
    for row in run():
        print(f"{row.what}: {row.measured} (promised {row.promised})")
