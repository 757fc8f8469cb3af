"""Who may ask the gateway on behalf of others: the clusters at its webhooks, the proxies at its doors."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from ostiary.core.settings.kinds import FilePath, Holds, Names


@dataclass(frozen=True, slots=True)
class Callers:
    """Who may ask: client certificates with these names, or whoever has the token in the file."""

    names: Annotated[
        tuple[str, ...],
        Names("common names of client certificates that may ask; needs `listen.tls.clientCA`"),
    ] = ()
    token_file: Annotated[
        Path | None, FilePath("a file with the token that callers present", holds=Holds.SECRET, unset="none")
    ] = None
