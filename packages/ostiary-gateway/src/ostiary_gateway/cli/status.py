"""``ostiary-gateway status``: the replicas of a gateway, and their errors."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ostiary.cli.arguments import JSON, add_output
from ostiary.cli.exit_codes import FAILED, OK
from ostiary.cli.output import print_json, print_note, print_table
from ostiary.core.text import age_text
from ostiary.errors import ConfigurationError
from ostiary_gateway.cli.options import add_config, add_server, config_path, load, remote, run_async

if TYPE_CHECKING:
    from ostiary_gateway.cli.remote import ApiObject

WIDE = "wide"
DESCRIPTION = """\
Show every replica of a gateway: its version, whether it has the same configuration as the others, how far it is
behind with revocations, its load, and whether it is ready.

  CONFIG   same, or OTHER: not the configuration that most replicas have. Normal while an update is rolled out.
  REVOKED  the number of the last revocation that is in force there; (-2): two behind the newest
  LAG      how long ago it was certain that no revocation is missing; beyond tokens.maxStale it answers 503
  RATE     requests per second; then requests in flight, and open streams

With --server a running gateway is asked: the policy must allow you to list replicas.ostiary.dev. With --config the
token store is asked directly, which needs no running gateway. A replica that stops takes itself off the list; one
that crashed is shown as silent for a minute.

The exit code is 0 if all replicas are ready and have the same configuration, and 1 if not: a script that rolls out an
update can wait for 0.
"""
EPILOG = """\
examples:
  ostiary-gateway status --server https://gateway.example.com
  ostiary-gateway status --server https://gateway.example.com -o wide
  ostiary-gateway status --config gateway.yaml -o json
  until ostiary-gateway status --server https://gateway.example.com; do sleep 5; done
"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.description, parser.epilog = DESCRIPTION, EPILOG
    add_config(parser)
    add_server(parser, beside_config=True)
    add_output(parser, WIDE)
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    gateway = remote(arguments)
    answer = gateway.get("replicas") if gateway is not None else _ask_store(arguments)
    items: Sequence[ApiObject] = answer["items"]
    if arguments.output == JSON:
        print_json(answer)
    elif items:
        _print_table(items, wide=arguments.output == WIDE)
        _print_notes(items)
    else:
        print("no replica is running: none has reported to the token store in the last minute")
    is_good = bool(items) and all(item["ready"] and item["configuration"]["compared"] != "other" for item in items)
    return OK if is_good else FAILED


def _print_table(items: Sequence[ApiObject], *, wide: bool) -> None:
    head = max((item["revocations"]["applied"] or 0 for item in items), default=0)
    header = ["NAME", "VERSION", "CONFIG", "REVOKED", "LAG", "RATE", "READY", "AGE"]
    rows = [_row(item, head) for item in items]
    if wide:
        header += ["HASH", "LOADED", "WORKERS", "TOKENS", "PID", "ID"]
        rows = [[*row, *_wide_row(item)] for row, item in zip(rows, items, strict=True)]
    print_table(header, rows)


def _row(item: ApiObject, head: int) -> list[str]:
    compared, load, revocations = item["configuration"]["compared"], item["load"], item["revocations"]
    applied = revocations["applied"]
    behind = f" (-{head - applied})" if applied is not None and applied < head else ""
    return [
        item["name"],
        item["version"],
        compared.upper() if compared == "other" else compared,
        "-" if applied is None else f"{applied}{behind}",
        "-" if applied is None else f"{revocations['confirmedSeconds']:g}s",
        f"{load['requestsPerSecond']:g}/s {load['inFlight']}+{load['openStreams']}",
        "yes" if item["ready"] else "NO",
        age_text(item["upSeconds"]),
    ]


def _wide_row(item: ApiObject) -> list[str]:
    configuration = item["configuration"]
    return [
        configuration["hash"],
        age_text(configuration["seconds"]),
        str(item["workers"]),
        str(item["load"]["tokens"]),
        str(item["pid"]),
        item["id"],
    ]


def _print_notes(items: Sequence[ApiObject]) -> None:
    """Print the errors of each replica, below the table."""
    for item in items:
        if not item["ready"]:
            print_note(f"{item['name']} is not ready: {item['trouble']}")
    others = [item["name"] for item in items if item["configuration"]["compared"] == "other"]
    if others:
        has = "has" if len(others) == 1 else "have"
        print_note(f"{', '.join(others)} {has} another configuration than most: normal only during an update")
    if len({item["version"] for item in items}) > 1:
        print_note("there are several versions: normal only during an update")


# --- the store of a configuration ---


def _ask_store(arguments: argparse.Namespace) -> ApiObject:
    from ostiary_gateway.api.operator_json import replicas_json
    from ostiary_gateway.capabilities import ability
    from ostiary_gateway.interfaces.store_capabilities import NoteStore
    from ostiary_gateway.replicas.registry import read_replicas

    store = load(arguments).store.instance
    notes = ability(store, NoteStore)
    if notes is None:
        raise ConfigurationError(
            "this token store keeps no list of replicas",
            cause="it is for a gateway on one machine",
            where=f"{config_path(arguments)}, store",
            hint="ask the running gateway: ostiary-gateway status --server URL",
            code="token-store-unavailable",
        )

    async def ask() -> ApiObject:
        try:
            return replicas_json(await read_replicas(notes))
        finally:
            await store.close()

    return run_async(ask())
