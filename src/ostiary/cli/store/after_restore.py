"""``ostiary store after-restore``: nothing that a backup brought back is accepted."""

from __future__ import annotations

import argparse

from ostiary.cli.arguments import JSON
from ostiary.cli.exit_codes import OK
from ostiary.cli.gateway.choice import config_path, run_async
from ostiary.cli.gateway.login_name import login_name
from ostiary.cli.output import print_json, print_note
from ostiary.cli.store.opening import ConfiguredStore, closing, configured_store
from ostiary.cli.store.progress import count_text
from ostiary.core.abilities import ability
from ostiary.core.tokens.moving import end_restored_sessions
from ostiary.core.tokens.moving_objects import count_objects
from ostiary.interfaces.store_abilities.stored_objects import ObjectStore


def after_restore(arguments: argparse.Namespace) -> int:
    configured = configured_store(config_path(arguments))
    ended, objects = run_async(_end(configured))
    if arguments.output == JSON:
        print_json({"ended": ended, "objects": objects})
        return OK
    print(f"{count_text(ended, 'session')} ended: everybody signs in again")
    if objects:
        # Nobody can tell which of them were deleted since, and without them the accounts would all be gone.
        kinds = ", ".join(f"{count:,} {kind}" for kind, count in objects.items())
        print_note(f"the backup has brought back {kinds}: delete again what was deleted after it was made")
    return OK


async def _end(chosen: ConfiguredStore) -> tuple[int, dict[str, int]]:
    async with closing(chosen):
        await chosen.check_owner()
        by = f"{login_name()} (ostiary store after-restore)"
        ended = await end_restored_sessions(chosen.movable(), by=by)
        keeping = ability(chosen.store, ObjectStore)
        return ended, {} if keeping is None else await count_objects(keeping)
