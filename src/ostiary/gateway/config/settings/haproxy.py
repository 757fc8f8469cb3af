"""The settings of a door for HAProxy: where it asks, and which decisions it is given to use again."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Annotated

from ostiary.core.settings.kinds import Duration, FilePath, Holds, Integer, Text
from ostiary.gateway.config.settings.kinds import listen_address
from ostiary.gateway.config.values import Address

# What has no other meaning to HAProxy's runtime socket.
MAP_FILE = r"(/[A-Za-z0-9_.-]+)+"


@dataclass(frozen=True, slots=True)
class AgentSettings:
    """Where HAProxy asks."""

    address: Annotated[
        Address,
        listen_address(
            "where the gateway listens for HAProxy's questions (SPOE), an address of its own. Beyond the loopback, and"
            " where `callers.names` are set, TLS is spoken with the certificate of `listen.tls`"
        ),
    ]


@dataclass(frozen=True, slots=True)
class CarriedDecisions:
    """The decisions that HAProxy uses again."""

    socket: Annotated[
        Path,
        FilePath(
            "HAProxy's runtime socket (`stats socket`, with `level admin`), over which it is told decisions",
            holds=Holds.WRITTEN,
            checked=False,
        ),
    ]
    map: Annotated[
        str,
        Text(
            "an empty file, from which HAProxy reads its map of decisions when it starts",
            pattern=MAP_FILE,
            mistake="it is not the whole path of a file, of letters, digits, dots, dashes and underscores",
        ),
    ] = "/dev/null"
    lifetime: Annotated[
        timedelta,
        Duration("how long HAProxy uses a decision before it asks again, though nothing has changed"),
    ] = timedelta(seconds=60)
    entries: Annotated[
        int,
        Integer("how many decisions a worker puts into HAProxy's map; of one user at most a tenth of them"),
    ] = 10_000
