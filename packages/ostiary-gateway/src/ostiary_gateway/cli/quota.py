"""``ostiary-gateway quota``: the usage of each subject under the object limits of a gateway."""

from __future__ import annotations

import argparse

from ostiary.cli.arguments import JSON, UsageError, add_output
from ostiary.cli.exit_codes import OK
from ostiary.cli.output import print_json, print_table
from ostiary_gateway.cli.options import add_server

DESCRIPTION = """\
Show what each namespace, user or group uses of the limits of objects that a gateway has (admission: object_quota), as
the upstream has it at this moment.

A running gateway is asked: the policy must allow you to list quotas.ostiary.dev.
"""
EPILOG = """\
examples:
  ostiary-gateway quota --server https://gateway.example.com
  ostiary-gateway quota --server https://gateway.example.com --limit team-pods
  ostiary-gateway quota --server https://gateway.example.com -o json
"""
_COLUMNS = ("limit", "upstream", "subject", "item", "used", "most")


def configure(parser: argparse.ArgumentParser) -> None:
    parser.description, parser.epilog = DESCRIPTION, EPILOG
    parser.add_argument("--limit", metavar="NAME", help="only this limit")
    add_server(parser)
    add_output(parser)
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    from ostiary_gateway.cli.remote import chosen_gateway

    if arguments.server is None:
        raise UsageError("--server is missing: only a running gateway knows what is used")
    answer = chosen_gateway(arguments).get("quotas")
    items = [item for item in answer["items"] if arguments.limit in (None, item["limit"])]
    if arguments.output == JSON:
        print_json({**answer, "items": items})
    elif items:
        print_table([name.upper() for name in _COLUMNS], [[str(item[key]) for key in _COLUMNS] for item in items])
    else:
        print("nothing is used of any limit of objects")
    return OK
