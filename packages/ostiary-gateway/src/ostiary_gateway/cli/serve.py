"""``ostiary-gateway serve``: run the gateway."""

from __future__ import annotations

import argparse
import gc
import json
import os
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from ostiary.cli.arguments import UsageError
from ostiary.cli.exit_codes import FAILED, OK
from ostiary.cli.output import print_note
from ostiary.core.text import printable
from ostiary.errors import ConfigurationError
from ostiary_gateway.cli.options import DEFAULT, run_async

if TYPE_CHECKING:
    from ostiary_gateway.config.file_checks import FileChecks
    from ostiary_gateway.config.gateway_config import GatewayConfig
    from ostiary_gateway.interfaces.authorization import Finding
    from ostiary_gateway.server.online_check import OnlineCheckResult

DESCRIPTION = """\
Run the gateway: it lets people and programs in by your identity system and your policy, and passes what is
allowed to your API server or any other HTTP API.

Every mistake in the configuration is reported, with its place, before the gateway listens. Without --config it reads
gateway.yaml in this directory; without that file, the gateway serves one user with all permissions, on this machine
only.
"""

EPILOG = """\
Signals: TERM or INT finish open requests, then stop (twice: stop at once); HUP reloads the configuration.

Examples:
  ostiary-gateway serve --config gateway.yaml
  ostiary-gateway serve --config gateway.yaml --check
  ostiary-gateway serve --config gateway.yaml --check --online
  ostiary-gateway serve --schema > gateway.schema.json
"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.description, parser.epilog = DESCRIPTION, EPILOG
    parser.add_argument(
        "-c", "--config", type=Path, metavar="FILE", help=f"the configuration (default: {DEFAULT} in this directory)"
    )
    parser.add_argument(
        "--check", action="store_true", help="only check the configuration, and the files and directories that it names"
    )
    parser.add_argument(
        "--online",
        action="store_true",
        help="with --check: also ask the token store, issuers, directories and upstreams, and open keys kept elsewhere",
    )
    parser.add_argument("--schema", action="store_true", help="print the JSON Schema of the configuration")
    # Internal: how the supervisor starts its workers.
    parser.add_argument("--worker", metavar="FDS", help=argparse.SUPPRESS)
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    if arguments.schema:
        from ostiary_gateway.config.schema import gateway_schema

        print(json.dumps(gateway_schema(), indent=2, ensure_ascii=False))
        return OK
    # A worker uses the path that it is given: the supervisor has chosen.
    path = arguments.config if arguments.worker else _config_file(arguments.config)
    if arguments.online and not arguments.check:
        raise UsageError("--online needs --check")
    return _check(path, online=arguments.online) if arguments.check else _serve(path, arguments.worker)


def _check(path: Path | None, *, online: bool) -> int:
    # Imported lazily: the gateway is large, and reading its configuration needs no extra.
    from ostiary_gateway.config import default_config, load, warnings
    from ostiary_gateway.interfaces.authorization import Level
    from ostiary_gateway.policy.source import find_unmatched
    from ostiary_gateway.settings.outgoing import opening_keys

    with opening_keys() if online else nullcontext():
        config = default_config() if path is None else load(path)
    checks = _file_checks(path)
    if checks is not None and checks.problems:
        raise ConfigurationError("the gateway cannot use these files", problems=checks.problems)
    failed = _ask_outside(config) if online else False
    if not failed:
        print(f"{path or 'the built-in configuration'}: OK")
    for note in checks.notes if checks is not None else ():
        print_note(str(note))
    for warning in warnings(config):
        print_note(warning)
    for finding in find_unmatched(config):
        if finding.level is not Level.INFO:
            print_note(_finding_text(finding))
    return FAILED if failed else OK


def _file_checks(path: Path | None) -> FileChecks | None:
    from ostiary.core.clock import SYSTEM_CLOCK
    from ostiary.core.yaml import read
    from ostiary_gateway.config.file_checks import check_files

    return None if path is None else check_files(read(path), path.absolute().parent, now=SYSTEM_CLOCK.now())


def _ask_outside(config: GatewayConfig) -> bool:
    """Print the state of each external system. Return whether one of them failed."""
    from ostiary_gateway.config.providers import close_all
    from ostiary_gateway.server.online_check import probe_all

    async def ask() -> list[OnlineCheckResult]:
        try:
            return await probe_all(config)
        finally:
            await close_all(provider.instance for provider in (*config.identity, *config.groups))
            await config.store.instance.close()

    answers = run_async(ask())
    for answer in answers:
        print(printable(f"{answer.what}: {answer.outcome}: {answer.detail}"))
    return not all(answer.ok for answer in answers)


def _finding_text(finding: Finding) -> str:
    problem = finding.problem
    return f"{problem}; {problem.hint}" if problem.hint else str(problem)


def _serve(path: Path | None, worker: str | None) -> int:
    # Nearly all objects created during the start are permanent. The garbage collector, which would scan them
    # repeatedly, is enabled when the gateway serves.
    gc.disable()
    try:
        return _start_and_serve(path, worker)
    finally:
        gc.enable()


def _start_and_serve(path: Path | None, worker: str | None) -> int:
    from ostiary_gateway.config import warnings
    from ostiary_gateway.observability.logging import configure_logging
    from ostiary_gateway.server.config_source import ConfigSource
    from ostiary_gateway.server.serve import run, run_worker

    def log_as_configured(config: GatewayConfig) -> None:
        configure_logging(config.log.format, config.log.level)

    if worker:
        from ostiary_gateway.limits.counts import MachineCounts
        from ostiary_gateway.limits.replicated_counts import ReplicatedCounts

        channel, counts, *listeners = worker.split(",")
        source = ConfigSource(path, ReplicatedCounts(MachineCounts(int(counts))))
        run_worker(source, listeners=listeners, channel_fd=int(channel), on_config=log_as_configured)
        return OK
    source = ConfigSource(path).at_this_moment()
    config = source.load()
    log_as_configured(config)
    checks = _file_checks(path)
    for problem in [] if checks is None else [*checks.problems, *checks.notes]:
        print_note(str(problem))
    for warning in warnings(config):
        print_note(warning)
    scheme = "https" if config.listen.tls is not None else "http"
    run(
        source,
        config,
        on_listening=_print_listening,
        on_serving=lambda address: _print_serving(f"{scheme}://{address}"),
    )
    return OK


def _config_file(named: Path | None) -> Path | None:
    """Return the configuration file; None if there is none. Report the choice if no file was named."""
    if named is not None:
        return named
    # Includes an unreadable file, which is then an error: an operator who wrote one must not get a gateway that allows
    # everything.
    if os.path.lexists(DEFAULT):
        print(f"ostiary: using {DEFAULT} in this directory", file=sys.stderr)
        return Path(DEFAULT)
    print_note(f"there is no {DEFAULT} in this directory: using the built-in configuration")
    return None


def _print_listening(health: str, grpc: str | None) -> None:
    if grpc is not None:
        print(f"ostiary: gRPC on {grpc}", file=sys.stderr)
    print(f"ostiary: health and metrics on http://{health}", file=sys.stderr, flush=True)


def _print_serving(url: str) -> None:
    # The address that operators wait for is printed last.
    print(f"ostiary: serving on {url} (process {os.getpid()})", file=sys.stderr, flush=True)
