"""Runs every benchmark, or those named, prints a table, and with --write keeps it in bench/RESULTS.md."""

from __future__ import annotations

import argparse
import platform
import sys
from collections.abc import Sequence
from pathlib import Path

from bench import (
    backend,
    client,
    device_keys,
    doors,
    exchange,
    gateway,
    get_token,
    greedy,
    grpc_door,
    haproxy,
    idle,
    logout,
    narrowed,
    rbac,
    registry,
    saml,
    slo,
    stores,
    tokens,
)
from bench.growth import bindings as growth_bindings
from bench.growth import connections as growth_connections
from bench.growth import tokens as growth_tokens
from bench.growth import users as growth_users
from bench.table import Row, as_markdown

SUITES = {
    "client": client.run,
    "slo": slo.run,
    "device-keys": device_keys.run,
    "registry": registry.run,
    "rbac": rbac.run,
    "tokens": tokens.run,
    "stores": stores.run,
    "gateway": gateway.run,
    "doors": doors.run,
    "grpc-door": grpc_door.run,
    "haproxy": haproxy.run,
    "narrowed": narrowed.run,
    "exchange": exchange.run,
    "logout": logout.run,
    "saml": saml.run,
    "backend": backend.run,
    "idle": idle.run,
    "greedy": greedy.run,
    "get-token": get_token.run,
    "growth-connections": growth_connections.run,
    "growth-users": growth_users.run,
    "growth-bindings": growth_bindings.run,
    "growth-tokens": growth_tokens.run,
}
RESULTS = Path(__file__).with_name("RESULTS.md")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("suites", nargs="*", help="which ones (default: all); growth is short for all growth-...")
    parser.add_argument("--write", action="store_true", help="keep these figures in bench/RESULTS.md")
    options = parser.parse_args()
    sections: dict[str, str] = {}
    for name in _chosen(options.suites):
        print(f"bench: {name}", file=sys.stderr)
        rows: list[Row] = []
        for row in SUITES[name]():
            print(f"  {row.what}: {row.measured} (promised {row.promised})", file=sys.stderr, flush=True)
            rows.append(row)
        sections[name] = f"## {name}\n\n{as_markdown(rows)}"
    print("\n\n".join(sections.values()))
    if options.write:
        _keep(sections)
    return 0


def _chosen(names: Sequence[str]) -> list[str]:
    """All without names. The first word of several suites, such as growth, stands for all of them."""
    chosen = []
    for name in names or SUITES:
        matching = [name] if name in SUITES else [suite for suite in SUITES if suite.startswith(f"{name}-")]
        if not matching:
            raise SystemExit(f"python -m bench: unknown suite {name} (there are: {', '.join(SUITES)})")
        chosen += matching
    return chosen


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
