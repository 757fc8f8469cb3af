"""``ostiary plugins``: what the catalog finds, and which package it comes from."""

from __future__ import annotations

import argparse
from collections import Counter
from dataclasses import asdict

from ostiary.cli.arguments import JSON, add_output
from ostiary.cli.exit_codes import FAILED, OK
from ostiary.cli.output import print_json, print_note, print_table

DESCRIPTION = """\
List the providers that installed packages declare, by the type and name under which a gateway.yaml can use them. No
provider is loaded: an installed package runs no code until a configuration names it.

Exit code 1 if two packages declare the same name: no configuration can use that name.
"""
EPILOG = """\
examples:
  ostiary plugins
  ostiary plugins --type identity --output json
"""
# As in `ostiary.core.catalog.TYPES`, which takes a while to import.
TYPES = ("identity", "group", "authorization", "admission", "token_store", "attributes")


def configure(parser: argparse.ArgumentParser) -> None:
    parser.description, parser.epilog = DESCRIPTION, EPILOG
    parser.add_argument("--type", choices=TYPES, help="only those of this type")
    add_output(parser)
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    from ostiary.core.catalog import installed

    types = (arguments.type,) if arguments.type else TYPES
    found = [entry for plugin_type in types for entry in installed(plugin_type)]
    if arguments.output == JSON:
        print_json({"plugins": [asdict(entry) for entry in found]})
    else:
        columns = ("type", "name", "package", "version", "target")
        print_table([name.upper() for name in columns], [[getattr(entry, key) for key in columns] for entry in found])
    claims = Counter((entry.type, entry.name) for entry in set(found))
    twice = [key for key, count in claims.items() if count > 1]
    for plugin_type, name in twice:
        print_note(f'two packages declare an {plugin_type} provider "{name}": uninstall one of the packages')
    return FAILED if twice else OK
