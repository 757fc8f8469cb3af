"""``ostiary serve``: run the gateway."""

from __future__ import annotations

import argparse
import os
import sys
from importlib import resources
from pathlib import Path

from ostiary.cli import OK
from ostiary.cli.output import print_note

DESCRIPTION = """\
Run the gateway: it lets people and programs in by your identity system and your policy, and passes what is
allowed to your API server or any other HTTP API.

Every mistake in the configuration is told, with its place, before anything listens. Without a configuration the
gateway serves one user, who may do everything, on this machine only.
"""

EPILOG = """\
Signals: TERM or INT finish what was begun and stop (twice: at once), HUP reads the configuration again.

Examples:
  ostiary serve --config gateway.yaml
  ostiary serve --config gateway.yaml --check
  ostiary serve --schema > gateway.schema.json
"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.description, parser.epilog = DESCRIPTION, EPILOG
    parser.add_argument(
        "-c", "--config", type=Path, metavar="FILE", help="the configuration (default: one user, allow all, loopback)"
    )
    parser.add_argument("--check", action="store_true", help="only say whether the configuration is right")
    parser.add_argument("--schema", action="store_true", help="print the JSON Schema of the configuration")
    # How a gateway with several workers starts them; not for people.
    parser.add_argument("--worker", metavar="FDS", help=argparse.SUPPRESS)
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    # Imported here: the gateway is large, and --help needs none of it.
    from ostiary.gateway.config import warnings
    from ostiary.gateway.logging import configure_logging
    from ostiary.gateway.supervisor import Source, run, run_worker

    if arguments.schema:
        print(resources.files("ostiary.gateway").joinpath("gateway.schema.json").read_text(), end="")
        return OK
    source = Source(arguments.config)
    config = source.load()
    if arguments.check:
        print(f"{arguments.config or 'the built-in configuration'}: right")
        for warning in warnings(config):
            print_note(warning)
        return OK
    configure_logging(config.log.format, config.log.level)
    if arguments.worker:
        listener, channel = (int(part) for part in arguments.worker.split(","))
        run_worker(source, listener_fd=listener, channel_fd=channel)
        return OK
    for warning in warnings(config):
        print_note(warning)
    scheme = "https" if config.listen.tls is not None else "http"
    run(source, config, on_listening=lambda address, health: _listening(f"{scheme}://{address}", health))
    return OK


def _listening(url: str, health: str) -> None:
    # The address that people wait for comes last.
    print(f"ostiary: health and metrics on http://{health}", file=sys.stderr)
    print(f"ostiary: serving on {url} (process {os.getpid()})", file=sys.stderr, flush=True)
