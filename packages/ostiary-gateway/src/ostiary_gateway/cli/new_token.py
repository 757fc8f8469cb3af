"""Options of ``accounts token`` and ``tokens create``: lifetime, scope, and where the token is written."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from ostiary.cli.arguments import JSON
from ostiary.cli.exit_codes import OK
from ostiary.cli.files import replace_file
from ostiary.cli.output import print_json, print_note

if TYPE_CHECKING:
    from ostiary_gateway.cli.remote import ApiObject


def add_token_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--for", dest="lifetime", metavar="TIME", help="how long it lives: 30m, 12h, 90d (default: as configured)"
    )
    parser.add_argument(
        "--can",
        action="append",
        default=[],
        metavar="RULE",
        help='what the token may do at most, as in "get,list pods -n shop"; the API discovery that kubectl needs'
        " is added; may be repeated (default: all that its owner may do)",
    )
    parser.add_argument(
        "--file", metavar="FILE", help="write the token into this file, readable by you alone, instead of printing it"
    )


def scope_text(arguments: argparse.Namespace) -> str:
    """Return the scope of ``--can`` in the gateway's format; empty for the full rights of the owner."""
    from ostiary.core.scopes import scope_of_rules

    return str(scope_of_rules(arguments.can)) if arguments.can else ""


def give_token(arguments: argparse.Namespace, answer: ApiObject) -> int:
    """Print the token, or write it to the file. It cannot be retrieved again."""
    status = answer["status"]
    if arguments.file is not None:
        replace_file(arguments.file, status["token"], 0o600)
        status = {**status, "token": None, "file": arguments.file}
    if arguments.output == JSON:
        print_json({**answer, "status": status})
    elif arguments.file is None:
        print(status["token"])
    if arguments.output != JSON and (arguments.file is not None or sys.stdout.isatty()):
        print_note(f"{status['user']}, until {status['expirationTimestamp']}; the token is not shown again")
    return OK
