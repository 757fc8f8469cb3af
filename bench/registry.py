"""What a look-up of an image's credentials costs, and how often the provider runs."""

from __future__ import annotations

import json
import shutil
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from bench.pace import pace
from bench.processes import alternating
from bench.table import Row
from ostiary.registry.keyring import Keyring
from ostiary.registry.kubelet.config import loads
from ostiary.wire.credential_provider import Request, encode_request
from tests.support.registry_daemon import DaemonSite

LOOKUPS, TURNS, CALLERS, PROCESS_TURNS = 2000, pace(40, quick=3), 200, pace(60, quick=3)
IMAGE = "wanted.registry.test/team/app:v1"
ANSWER = {
    "kind": "CredentialProviderResponse",
    "apiVersion": "credentialprovider.kubelet.k8s.io/v1",
    "cacheKeyType": "Registry",
    "cacheDuration": "1h",
    "auth": {"wanted.registry.test": {"username": "robot", "password": "word"}},
}


def run() -> Iterator[Row]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        few, many = _keyring(folder, 10), _keyring(folder, 10_000)
        times = {keyring: _times(keyring) for keyring in (few, many)}
        # In turns: the machine is shared.
        for _ in range(TURNS):
            for keyring in (few, many):
                times[keyring].append(_turn(keyring))
        took = {keyring: statistics.median(found) / LOOKUPS for keyring, found in times.items()}
        yield Row("cached look-up, 10 patterns", f"{1 / took[few]:,.0f} / s", ">= 50,000 / s")
        yield Row("cached look-up, 10,000 patterns", f"{1 / took[many]:,.0f} / s", ">= 50,000 / s")
        yield Row("10,000 patterns / 10 patterns", f"{took[many] / took[few]:.2f}", "<= 2")
        yield Row(f"{CALLERS} look-ups of one registry at once", f"{_runs_together(folder)} runs", "1 run")
        yield from _whole_processes(folder)


def _whole_processes(folder: Path) -> Iterator[Row]:
    """The programs that pull, with an answer that the daemon has, against the bare interpreter."""
    site = DaemonSite(folder / "daemon", "wanted.registry.test")
    site.provider.print_exactly(json.dumps(ANSWER).encode())
    login = json.dumps({"Username": "robot", "Secret": "word"})
    source = {"matchImages": ["wanted.registry.test"], "command": ["echo", login], "cacheDuration": "1h"}
    sources = site.folder / "sources.yaml"
    sources.write_text(json.dumps({"apiVersion": "ostiary/v1", "kind": "ImageCredentialSources", "sources": [source]}))
    (site.folder / "server").write_text("wanted.registry.test")
    (site.folder / "request").write_bytes(encode_request(Request("wanted.registry.test/team/app")))
    commands = {
        "bare": ([sys.executable, "-I", "-c", "pass"], "server"),
        "docker-credential-ostiary get": (["docker-credential-ostiary", "get"], "server"),
        "ostiary-credential-provider": (["ostiary-credential-provider", "--config", str(sources)], "request"),
    }
    environment = site.environment
    found = {name: [_found(words[0], environment), *words[1:]] for name, (words, _) in commands.items()}
    inputs = {name: site.folder / file for name, (_, file) in commands.items()}
    with site.serving():
        took = alternating(found, environment, PROCESS_TURNS, stdin=inputs)
        runs = site.provider.runs
    bare = took.pop("bare")
    for name, ours in took.items():
        yield Row(f"{name}, cached / bare interpreter", f"{ours.wall / bare.wall:.2f}", "<= 1.3")
        yield Row(f"the same in CPU time, {name}", f"{ours.cpu / bare.cpu:.2f}", "<= 1.3")
    yield Row(f"{PROCESS_TURNS} pulls through the docker helper", f"{runs} runs", "1 run")


def _found(program: str, environment: Mapping[str, str]) -> str:
    path = shutil.which(program, path=environment["PATH"])
    assert path, program
    return path


def _keyring(folder: Path, patterns: int) -> Keyring:
    """*patterns* patterns in ten providers, of which one matches."""
    each = patterns // 10
    providers = []
    for number in range(10):
        provider = folder / f"provider-{number}"
        provider.write_text(
            f"#!/bin/sh\ncat > /dev/null\necho run >> {folder}/runs\nsleep 0.2\necho '{json.dumps(ANSWER)}'\n"
        )
        provider.chmod(0o755)
        names = [f"*.host-{number}-{n}.registry.test/path" for n in range(each)]
        providers.append(
            {
                "name": provider.name,
                "apiVersion": "credentialprovider.kubelet.k8s.io/v1",
                "matchImages": [*names[:-1], "wanted.registry.*"] if number == 7 else names,
                "defaultCacheDuration": "1h",
            }
        )
    config = {"apiVersion": "kubelet.config.k8s.io/v1", "kind": "CredentialProviderConfig", "providers": providers}
    return Keyring(loads(json.dumps(config)), bin_dir=folder)


def _times(keyring: Keyring) -> list[float]:
    assert len(keyring.lookup(IMAGE)) == 1
    return []


def _turn(keyring: Keyring) -> float:
    started = time.perf_counter()
    for _ in range(LOOKUPS):
        keyring.lookup(IMAGE)
    return time.perf_counter() - started


def _runs_together(folder: Path) -> int:
    runs = folder / "runs"
    runs.write_text("")
    keyring, barrier = _keyring(folder, 10), threading.Barrier(CALLERS)

    def one(number: int) -> None:
        barrier.wait()
        assert keyring.lookup(f"wanted.registry.test/team-{number}/app").found

    with ThreadPoolExecutor(CALLERS) as pool:
        list(pool.map(one, range(CALLERS)))
    return runs.read_text().count("\n")
