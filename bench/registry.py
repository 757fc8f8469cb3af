"""What a look-up of an image's credentials costs, and how often the provider runs."""

from __future__ import annotations

import json
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from bench.table import Row
from ostiary.registry.keyring import Keyring
from ostiary.registry.kubelet.config import loads

LOOKUPS, TURNS, CALLERS = 2000, 40, 200
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
