"""``ostiary serve``: run the gateway."""

from __future__ import annotations

import argparse
import os
import sys
from importlib import resources
from pathlib import Path

from ostiary.cli import OK
from ostiary.cli.extras import needing
from ostiary.cli.gateway_choice import DEFAULT
from ostiary.cli.output import print_note

DESCRIPTION = """\
Run the gateway: it lets people and programs in by your identity system and your policy, and passes what is
allowed to your API server or any other HTTP API.

Every mistake in the configuration is told, with its place, before anything listens. Without --config it is the
gateway.yaml of this directory; where there is none, the gateway serves one user, who may do everything, on this
machine only.
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
        "-c", "--config", type=Path, metavar="FILE", help=f"the configuration (default: {DEFAULT} in this directory)"
    )
    parser.add_argument("--check", action="store_true", help="only say whether the configuration is right")
    parser.add_argument("--schema", action="store_true", help="print the JSON Schema of the configuration")
    # How a gateway with several workers starts them; not for people.
    parser.add_argument("--worker", metavar="FDS", help=argparse.SUPPRESS)
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    if arguments.schema:
        print(resources.files("ostiary.gateway").joinpath("gateway.schema.json").read_text(), end="")
        return OK
    # A worker takes what it is given: the choice has been made.
    path = arguments.config if arguments.worker else _chosen(arguments.config)
    return _check(path) if arguments.check else _serve(path, arguments.worker)


def _check(path: Path | None) -> int:
    # Imported where it is needed: the gateway is large, and whoever only reads its configuration needs no extra.
    from ostiary.gateway.config import default_config, load, warnings

    config = default_config() if path is None else load(path)
    print(f"{path or 'the built-in configuration'}: right")
    for warning in warnings(config):
        print_note(warning)
    return OK


def _serve(path: Path | None, worker: str | None) -> int:
    from ostiary.gateway.config import warnings
    from ostiary.gateway.logging import configure_logging

    with needing("gateway"):
        from ostiary.gateway.supervisor import Source, run, run_worker

    source = Source(path)
    config = source.load()
    configure_logging(config.log.format, config.log.level)
    if worker:
        listener, channel = (int(part) for part in worker.split(","))
        run_worker(source, listener_fd=listener, channel_fd=channel)
        return OK
    for warning in warnings(config):
        print_note(warning)
    scheme = "https" if config.listen.tls is not None else "http"
    run(source, config, on_listening=lambda address, health: _listening(f"{scheme}://{address}", health))
    return OK


def _chosen(named: Path | None) -> Path | None:
    """The file to take; None if there is none, and it is told in both cases what was not asked for."""
    if named is not None:
        return named
    # Also one that cannot be read, which is then told: whoever wrote a file is not served with everything allowed.
    if os.path.lexists(DEFAULT):
        print(f"ostiary: taking {DEFAULT} of this directory", file=sys.stderr)
        return Path(DEFAULT)
    print_note(f"there is no {DEFAULT} in this directory: taking the built-in configuration")
    return None


def _listening(url: str, health: str) -> None:
    # The address that people wait for comes last.
    print(f"ostiary: health and metrics on http://{health}", file=sys.stderr)
    print(f"ostiary: serving on {url} (process {os.getpid()})", file=sys.stderr, flush=True)
