"""Parses many files, in several processes where that is quicker. Called by `load`.

    plain YAML: here, at once      the rest: here if it is little, else divided among child processes

A child is a new Python process and no fork, because the process that loads a policy has threads. It takes the bytes
from its stdin and writes what they hold to its stdout. If it cannot, the files are parsed here.
"""

from __future__ import annotations

import logging
import os
import pickle
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from ostiary.core.process import Ending, RunLimits, Stderr, run
from ostiary.plugins.rbac.files.parse import parse_file, parse_quickly
from ostiary.wire.rbac import Manifests

# A process takes a third of a second to start, in which as much is parsed here.
BYTES_PER_PROCESS = 512 * 1024
MAX_PROCESSES = 8

_PARSE = "from ostiary.plugins.rbac.files.parallel import parse_stdin; parse_stdin()"
_FAILED = "a process that parses RBAC manifests failed, and they are parsed without it"
_LIMITS = RunLimits(seconds=600.0, stdout_bytes=4 << 30)

log = logging.getLogger("ostiary.rbac")


class FileBytes(NamedTuple):
    """A file as it was read."""

    file: str
    data: bytes
    digest: bytes


def parse_files(files: Sequence[FileBytes]) -> list[Manifests]:
    """What each of *files* holds, with all mistakes."""
    parsed = [parse_quickly(data, file) for file, data, _ in files]
    rest = [number for number, manifests in enumerate(parsed) if manifests is None]
    others = dict(zip(rest, _parse_rest([files[number] for number in rest]), strict=True))
    return [others[number] if manifests is None else manifests for number, manifests in enumerate(parsed)]


def _parse_rest(files: Sequence[FileBytes]) -> list[Manifests]:
    count = min(_processors(), len(files), sum(len(each.data) for each in files) // BYTES_PER_PROCESS, MAX_PROCESSES)
    if count < 2:
        return [parse_file(each.data, each.file) for each in files]
    shares = _divide([len(each.data) for each in files], count)
    with ThreadPoolExecutor(count) as threads:
        results = list(threads.map(lambda share: _parse_in_child([files[number] for number in share]), shares))
    manifests: dict[int, Manifests] = {}
    for share, parts in zip(shares, results, strict=True):
        manifests.update(zip(share, parts, strict=True))
    return [manifests[number] for number in range(len(files))]


def _divide(sizes: Sequence[int], count: int) -> list[list[int]]:
    """The numbers of all files, divided so that each share is about as large as the others."""
    shares: list[list[int]] = [[] for _ in range(count)]
    totals = [0] * count
    for number in sorted(range(len(sizes)), key=lambda number: -sizes[number]):
        smallest = totals.index(min(totals))
        shares[smallest].append(number)
        totals[smallest] += sizes[number]
    return shares


def _parse_in_child(files: Sequence[FileBytes]) -> list[Manifests]:
    try:
        outcome = run(
            sys.executable,
            [sys.executable, "-P", "-c", _PARSE],
            env=os.environ,
            stdin=pickle.dumps([(each.data, each.file) for each in files]),
            stderr=Stderr.CAPTURE,
            limits=_LIMITS,
        )
        if outcome.ending is Ending.EXITED and outcome.exit_code == 0:
            return _unpickle(outcome.stdout)
        log.warning(_FAILED)
    except OSError as error:
        log.warning("RBAC manifests are not parsed in parallel: %s", error.strerror)
    except pickle.UnpicklingError:
        log.warning(_FAILED)
    return [parse_file(each.data, each.file) for each in files]


def _unpickle(output: bytes) -> list[Manifests]:
    try:
        # Written by our own code in a process of our own: nobody else can write to that pipe.
        parsed: list[Manifests] = pickle.loads(output)  # noqa: S301
    except Exception as error:
        # Whatever printed something before our code did: bytes that are no pickle raise almost anything.
        raise pickle.UnpicklingError from error
    return parsed


def parse_stdin() -> None:
    """What a child process does."""
    files: list[tuple[bytes, str]] = pickle.load(sys.stdin.buffer)  # noqa: S301
    pickle.dump([parse_file(data, file) for data, file in files], sys.stdout.buffer, pickle.HIGHEST_PROTOCOL)


def _processors() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
