"""``ostiary-gateway plugins``: the plugins in the catalog, their packages and their capabilities."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING

from ostiary.cli.arguments import JSON, TEXT, add_output
from ostiary.cli.exit_codes import FAILED, OK
from ostiary.cli.output import print_json, print_note, print_table

if TYPE_CHECKING:
    from ostiary.core.entry_points import CatalogEntry

DESCRIPTION = """\
List the providers that installed packages declare, by the type and name under which a gateway.yaml can use them. No
provider is loaded: an installed package runs no code until a configuration names it.

--output wide and json add what each provider declares: its abilities (optional methods that the gateway uses) and its
traits (what it needs or implies). Only for these, the class of every listed provider is imported, which runs code of
its package. ostiary-gateway serve imports only what its configuration names.

Exit code 1 if two packages declare the same name: no configuration can use that name.
"""
EPILOG = """\
examples:
  ostiary-gateway plugins
  ostiary-gateway plugins --type token_store --output wide
  ostiary-gateway plugins --type identity --output json
"""
# Equal to `ostiary_gateway.catalog.TYPES`, which is slow to import.
TYPES = ("identity", "group", "authorization", "admission", "token_store", "attributes", "audit", "key")
WIDE = "wide"


@dataclass(frozen=True, slots=True)
class Declared:
    """The declaration of a provider's class.

    `problems` lists why it cannot be loaded, or which rules of its contract it violates.
    """

    abilities: tuple[str, ...] = ()
    traits: Mapping[str, bool | None] = field(default_factory=dict)
    problems: tuple[str, ...] = ()


def configure(parser: argparse.ArgumentParser) -> None:
    parser.description, parser.epilog = DESCRIPTION, EPILOG
    parser.add_argument("--type", choices=TYPES, help="only those of this type")
    add_output(parser, WIDE)
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    from ostiary.core.entry_points import list_entries

    types = (arguments.type,) if arguments.type else TYPES
    entries = [entry for plugin_type in types for entry in list_entries(plugin_type)]
    if arguments.output == TEXT:
        _print_columns(entries, ("type", "name", "package", "version", "target"))
    elif arguments.output == JSON:
        print_json({"plugins": [asdict(entry) | asdict(_read_declaration(entry)) for entry in entries]})
    else:
        _print_wide(entries)
    return _report_claims(entries)


def _print_wide(entries: list[CatalogEntry]) -> None:
    declared = [_read_declaration(entry) for entry in entries]
    abilities = [{"abilities": ",".join(each.abilities), "traits": _traits(each.traits)} for each in declared]
    _print_columns(entries, ("type", "name", "package", "version", "abilities", "traits"), abilities)
    for entry, each in zip(entries, declared, strict=True):
        for problem in each.problems:
            print_note(f'{entry.type} "{entry.name}": {problem}')


def _print_columns(
    entries: list[CatalogEntry], columns: tuple[str, ...], more: Iterable[Mapping[str, str]] | None = None
) -> None:
    rows = [asdict(entry) | dict(added) for entry, added in zip(entries, more or [{}] * len(entries), strict=True)]
    print_table([name.upper() for name in columns], [[row[name] for name in columns] for row in rows])


def _traits(traits: Mapping[str, bool | None]) -> str:
    """Return the traits that are present, with a question mark if one depends on the settings."""
    return ",".join(name if value else f"{name}?" for name, value in traits.items() if value is not False)


def _read_declaration(entry: CatalogEntry) -> Declared:
    """Import the provider's class, which the catalog avoids, and describe it."""
    from ostiary.core.entry_points import load_class
    from ostiary.errors import ConfigurationError
    from ostiary_gateway.capabilities import describe
    from ostiary_gateway.contract_violations import flaws

    try:
        provider = load_class(entry.type, entry.name)
    except ConfigurationError as error:
        return Declared(problems=(": ".join(filter(None, (error.summary, error.cause))),))
    description = describe(entry.type, provider)
    problems = tuple(flaw.message for flaw in flaws(entry.type, provider))
    return Declared(description.abilities, dict(description.traits), problems)


def _report_claims(entries: list[CatalogEntry]) -> int:
    claims = Counter((entry.type, entry.name) for entry in set(entries))
    twice = [key for key, count in claims.items() if count > 1]
    for plugin_type, name in twice:
        print_note(f'two packages declare an {plugin_type} provider "{name}": uninstall one of the packages')
    return FAILED if twice else OK
