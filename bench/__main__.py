"""Runs every benchmark, or those named, prints a table, and with --write keeps it in bench/RESULTS.md."""

from __future__ import annotations

import argparse
import platform
import sys
from pathlib import Path

from bench import client, gateway, get_token, greedy, idle, rbac, registry, tokens
from bench.table import Row, as_markdown

SUITES = {
    "client": client.run,
    "registry": registry.run,
    "rbac": rbac.run,
    "tokens": tokens.run,
    "gateway": gateway.run,
    "idle": idle.run,
    "greedy": greedy.run,
    "get-token": get_token.run,
}
RESULTS = Path(__file__).with_name("RESULTS.md")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("suites", nargs="*", help="which ones (default: all)")
    parser.add_argument("--write", action="store_true", help="keep the figures in bench/RESULTS.md")
    options = parser.parse_args()
    sections = []
    for name in options.suites or SUITES:
        print(f"bench: {name}", file=sys.stderr)
        rows: list[Row] = []
        for row in SUITES[name]():
            print(f"  {row.what}: {row.measured} (promised {row.promised})", file=sys.stderr, flush=True)
            rows.append(row)
        sections.append(f"## {name}\n\n{as_markdown(rows)}")
    text = "\n\n".join(sections)
    print(text)
    if options.write:
        machine = f"Python {platform.python_version()}, {platform.system()} {platform.machine()}"
        intro = f"# Figures\n\nMade by `make bench` ({machine}). Ratios are medians within one run.\n\n"
        RESULTS.write_text(intro + text + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
