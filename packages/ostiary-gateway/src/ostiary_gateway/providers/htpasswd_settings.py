"""The settings of the identity provider ``htpasswd``."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from ostiary_gateway.providers.common.lockout import LockoutSettings
from ostiary_gateway.providers.common.password_proof import Realm
from ostiary_gateway.settings.kinds import FilePath, Holds, Integer
from ostiary_gateway.settings.sections import Section


@dataclass(frozen=True, slots=True)
class HtpasswdSettings:
    """The settings of the identity provider ``htpasswd``."""

    path: Annotated[
        Path,
        FilePath(
            "lines `name:hash`, as `htpasswd -B` writes them (bcrypt), or with argon2id hashes; read again when it"
            " changes",
            holds=Holds.POLICY,
            checked=False,
            empty="",
            missing="it is missing: the file with the users",
        ),
    ]
    realm: Realm = ""
    concurrency: Annotated[int | None, Integer("passwords checked at a time", unset="one per processor")] = None
    lockout: Annotated[LockoutSettings, Section("when guessing is stopped", LockoutSettings)] = field(
        default=LockoutSettings()
    )
