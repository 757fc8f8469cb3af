"""``ostiary registry status`` and ``reload``: query the daemon, and make it read its configurations again."""

from __future__ import annotations

import argparse
import json

from ostiary.cli.arguments import JSON, UsageError, add_output
from ostiary.cli.output import print_json
from ostiary.core.text import printable
from ostiary.registry.daemon import client, protocol
from ostiary.registry.daemon.client_errors import error_for
from ostiary.registry.daemon.status import DaemonStatus
from ostiary.registry.user_config import SOCKET_VARIABLE, socket_path

STATUS_HELP = """\
Show the credential daemon of this user: the configurations in force, how often each provider has run, how many answers
are in memory, and what is disabled. No secret is shown. Exit code 1 if it does not run.
"""
RELOAD_HELP = """\
Have the credential daemon read its configurations again now; it looks by itself, too, within a second. A configuration
with mistakes leaves the old one in force. --drop forgets all credentials, so that providers run again.

Exit code 1 if it does not run, or if a configuration cannot be used.
"""


def configure_status(parser: argparse.ArgumentParser) -> None:
    _add_socket(parser)
    parser.set_defaults(run=status)


def configure_reload(parser: argparse.ArgumentParser) -> None:
    _add_socket(parser)
    parser.add_argument("--drop", action="store_true", help="forget all credentials that are in memory")
    parser.set_defaults(run=reload)


def _add_socket(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--socket", metavar="PATH", help=f"where it listens (default: ${SOCKET_VARIABLE}, as for serve)"
    )
    add_output(parser)


def status(arguments: argparse.Namespace) -> int:
    return _print(_ask(arguments, protocol.STATUS), arguments)


def reload(arguments: argparse.Namespace) -> int:
    report = _ask(arguments, protocol.RELOAD, b"drop" if arguments.drop else b"")
    _print(report, arguments)
    return 1 if any(each["error"] for each in report["configs"]) else 0


def _ask(arguments: argparse.Namespace, verb: bytes, *texts: bytes) -> DaemonStatus:
    path = arguments.socket or socket_path()
    if path is None:
        raise UsageError("there is no daemon to ask", hint="name its socket: --socket PATH")
    try:
        _, stdout, _ = client.ask(path, verb, *texts)
    except (client.NoAnswer, client.ForeignSocket, client.Overdue) as error:
        raise error_for(path, error) from None
    report: DaemonStatus = json.loads(stdout)
    return report


def _print(report: DaemonStatus, arguments: argparse.Namespace) -> int:
    if arguments.output == JSON:
        print_json(report)
        return 0
    print(f"daemon {report['pid']} of ostiary {report['version']}, since {report['started']}")
    print(f"questions {report['questions']}, answers in memory {report['keptAnswers']}")
    for text in report["disabled"]:
        print(f"disabled: {printable(text)}")
    for config in report["configs"]:
        print(f"\nconfiguration {printable(config['path'])}")
        if config["error"]:
            print(f"  not in force as it is now: {printable(config['error'])}")
        for provider in config["providers"]:
            state = "disabled" if provider["disabled"] else f"{provider['keptAnswers']} answers in memory"
            print(f"  {printable(provider['name'])}: run {provider['runs']} times, {state}")
    for sources in report["sources"]:
        print(f"\nsources {printable(sources['path'])}: asked {sources['runs']} times")
    return 0
