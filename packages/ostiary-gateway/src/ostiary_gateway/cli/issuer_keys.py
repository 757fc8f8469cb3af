"""``ostiary-gateway issuer keys`` and ``issuer rotate``: the signing keys in the token store of a configuration."""

from __future__ import annotations

import argparse
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime

from ostiary.cli.exit_codes import OK
from ostiary.cli.output import print_json, print_note, print_table
from ostiary.core.clock import SYSTEM_CLOCK
from ostiary.errors import ConfigurationError
from ostiary_gateway.capabilities import ability
from ostiary_gateway.cli.options import config_path, load, run_async
from ostiary_gateway.config.gateway_config import GatewayConfig
from ostiary_gateway.interfaces.store_capabilities import ObjectStore
from ostiary_gateway.issuer.keys import RingKey
from ostiary_gateway.issuer.stored_keys import StoredKeys


def list_keys(arguments: argparse.Namespace) -> int:
    keys = run_async(_with_keys(load(arguments), config_path(arguments), lambda keys: keys.refresh()))
    _print(keys, as_json=arguments.output == "json")
    return OK


def rotate(arguments: argparse.Namespace) -> int:
    async def change(keys: StoredKeys) -> None:
        await keys.refresh()
        await keys.rotate_now(withdraw=arguments.withdraw)

    keys = run_async(_with_keys(load(arguments), config_path(arguments), change))
    _print(keys, as_json=arguments.output == "json")
    if arguments.withdraw:
        print_note("verifiers that keep a copy of the keys accept the old ones until they fetch them again")
    return OK


async def _with_keys(config: GatewayConfig, where: str, work: Callable[[StoredKeys], Awaitable[None]]) -> StoredKeys:
    store = config.store.instance
    objects = ability(store, ObjectStore)
    if config.issuer is None or config.issuer.keys.secret_file is None or objects is None:
        raise ConfigurationError(
            "there are no signing keys in the token store",
            cause="the configuration has no issuer.keys.secretFile",
            where=where,
            hint="set issuer.keys.secretFile; keys in files (issuer.keys.files) are rotated by changing that list",
            code="config-invalid",
        )
    keys = StoredKeys(objects, str(config.issuer.keys.secret_file), config.issuer.keys.life, SYSTEM_CLOCK)
    try:
        await work(keys)
    finally:
        await store.close()
    return keys


def _print(keys: StoredKeys, *, as_json: bool) -> None:
    now = SYSTEM_CLOCK.now()
    signing = keys.ring.signing(now)
    rows = [(key, _state(key, signing, now)) for key in keys.ring.keys]
    if as_json:
        print_json(
            {
                "keys": [
                    {
                        "kid": key.id,
                        "state": state,
                        "signsFrom": key.signs_from.isoformat(),
                        "signsUntil": key.signs_until.isoformat(),
                        "publishedUntil": key.published_until.isoformat(),
                    }
                    for key, state in rows
                ]
            }
        )
        return
    header = ("KEY", "STATE", "SIGNS FROM", "SIGNS UNTIL", "PUBLISHED UNTIL")
    lines = [
        (key.id, state, *map(_time, (key.signs_from, key.signs_until, key.published_until))) for key, state in rows
    ]
    print_table(header, lines)


def _state(key: RingKey, signing: RingKey | None, now: datetime) -> str:
    if key.private is None:
        return "cannot be opened"
    if key is signing:
        return "signs"
    if now < key.signs_from:
        return "next"
    return "published" if now < key.published_until else "ended"


def _time(moment: datetime) -> str:
    return f"{moment.astimezone(UTC):%Y-%m-%d %H:%M:%S}Z"
