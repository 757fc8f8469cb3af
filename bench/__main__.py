"""Runs every benchmark, or those named, prints a table, and with --write keeps it in bench/RESULTS.md.

Plots go to bench/plots. With --quick everything runs for a moment only, to show that it works: figures and plots are
thrown away.
"""

from __future__ import annotations

import argparse
import importlib
import platform
import shutil
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from bench import pace, plots
from bench.table import Row, as_markdown

# What the load, the backend and plain nginx are; `scripts/components bench` installs them.
OF_GATEWAY = ("nginx", "taskset", "wrk")


class Suite(NamedTuple):
    module: str
    # On two cores that have nothing else to do; to know how long a run takes, not a promise.
    minutes: float
    # Programs without which nothing of it can be measured.
    needs: tuple[str, ...] = ()


SUITES = {
    "client": Suite("bench.client", 2),
    "client-instructions": Suite("bench.client_instructions", 2),
    "slo": Suite("bench.slo", 2),
    "device-keys": Suite("bench.device_keys", 1),
    "registry": Suite("bench.registry", 1),
    "rbac": Suite("bench.rbac", 1),
    "rbac-watch": Suite("bench.rbac_watch", 1),
    "audit-log": Suite("bench.audit_log", 2),
    "tokens": Suite("bench.tokens", 2),
    "stores": Suite("bench.stores", 10),
    "gateway": Suite("bench.gateway", 4, OF_GATEWAY),
    "heads": Suite("bench.heads", 6, OF_GATEWAY),
    "new-requests": Suite("bench.new_requests", 2),
    "handshakes": Suite("bench.handshakes", 2, OF_GATEWAY),
    "mix": Suite("bench.mix.replay", 2, OF_GATEWAY),
    "bodies": Suite("bench.bodies", 2, OF_GATEWAY),
    "rates": Suite("bench.rates", 2, ("nginx", "taskset", "h2load")),
    "growth-connections": Suite("bench.growth.connections", 2, OF_GATEWAY),
    "growth-users": Suite("bench.growth.users", 4, OF_GATEWAY),
    "growth-bindings": Suite("bench.growth.bindings", 2),
    "growth-tokens": Suite("bench.growth.tokens", 5),
    "doors": Suite("bench.doors", 3, OF_GATEWAY),
    "grpc-door": Suite("bench.grpc_door", 1),
    "haproxy": Suite("bench.haproxy", 2, OF_GATEWAY),
    "narrowed": Suite("bench.narrowed", 2),
    "exchange": Suite("bench.exchange", 1),
    "logout": Suite("bench.logout", 1),
    "saml": Suite("bench.saml", 1),
    "backend": Suite("bench.backend", 1),
    "idle": Suite("bench.idle", 1),
    "greedy": Suite("bench.greedy", 1),
    "get-token": Suite("bench.get_token", 1),
}
RESULTS = Path(__file__).with_name("RESULTS.md")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    listed = f"{', '.join(SUITES)}; the first word of several stands for all of them"
    parser.add_argument("suites", nargs="*", metavar="SUITE", help=f"which ones (default: all): {listed}")
    parser.add_argument("--write", action="store_true", help="keep these figures in bench/RESULTS.md")
    parser.add_argument("--quick", action="store_true", help="only see that everything runs; keeps nothing")
    options = parser.parse_args(arguments)
    if unknown := [name for name in options.suites if not _meant_by(name)]:
        parser.error(f"unknown suite: {', '.join(unknown)} (there are: {', '.join(SUITES)})")
    chosen = [suite for name in options.suites for suite in _meant_by(name)] or list(SUITES)
    if options.quick and options.write:
        parser.error("--quick makes no figures that could be kept")
    with tempfile.TemporaryDirectory() as thrown_away:
        if options.quick:
            pace.be_quick()
            plots.draw_into(Path(thrown_away))
        return 0 if _run_all(chosen, write=options.write) else 1


def _meant_by(name: str) -> list[str]:
    """The suite of that name, or all whose first word it is."""
    return [name] if name in SUITES else [suite for suite in SUITES if suite.startswith(f"{name}-")]


def _run_all(names: Sequence[str], *, write: bool) -> bool:
    """Whether all went well. What a suite measured is printed and kept before the next one begins."""
    failed: list[str] = []
    left = sum(SUITES[name].minutes for name in names)
    for number, name in enumerate(names, 1):
        time_left = "" if pace.is_quick() else f", about {left:.0f} minutes to go"
        _say(f"bench: {name}, {number} of {len(names)}{time_left}")
        left -= SUITES[name].minutes
        if lacking := [program for program in SUITES[name].needs if not shutil.which(program)]:
            # What was measured elsewhere stays: there is no section to keep.
            _say(f"bench: {name} is left out: there is no {', '.join(lacking)} here")
            continue
        try:
            section = _section(name)
        except Exception:
            # An hour's work of the others is not thrown away for one.
            traceback.print_exc()
            failed.append(name)
            continue
        print(section, end="\n\n", flush=True)
        if write:
            _keep({name: section})
    if failed:
        _say(f"bench: failed: {', '.join(failed)}")
    return not failed


def _section(name: str) -> str:
    began = time.monotonic()
    rows: list[Row] = []
    for row in _run_of(name)():
        _say(f"  {row.what}: {row.measured} (promised {row.promised})")
        rows.append(row)
    _say(f"bench: {name} took {time.monotonic() - began:.0f} s")
    return f"## {name}\n\n{as_markdown(rows)}"


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _run_of(name: str) -> Callable[[], Iterator[Row]]:
    """Imported here and not before: a suite reads at its import whether it shall be quick."""
    run: Callable[[], Iterator[Row]] = importlib.import_module(SUITES[name].module).run
    return run


def _keep(sections: dict[str, str]) -> None:
    """Write the sections that were made in this run, and leave the others as they are."""
    machine = f"Python {platform.python_version()}, {platform.system()} {platform.machine()}"
    intro = f"# Figures\n\nMade by `make bench` ({machine}). Ratios are medians within one run.\n\n"
    before = RESULTS.read_text() if RESULTS.exists() else ""
    kept = {part.partition("\n")[0]: f"## {part.rstrip()}" for part in before.split("\n## ")[1:]}
    kept |= sections
    RESULTS.write_text(intro + "\n\n".join(kept[name] for name in SUITES if name in kept) + "\n")


if __name__ == "__main__":
    sys.exit(main())
