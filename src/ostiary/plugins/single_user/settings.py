"""The settings of the identity provider ``single_user``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from ostiary.core.settings.kinds import Text


@dataclass(frozen=True, slots=True)
class SingleUserSettings:
    username: Annotated[
        str | None,
        Text(
            "the name of the one user",
            unset="the user of the process",
            empty_hint="leave it out to be the user of the process",
        ),
    ] = None
