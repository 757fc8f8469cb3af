"""The settings of the identity provider ``gitlab``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from ostiary.core.settings.kinds import Text, Texts, Word
from ostiary.plugins.oidc.settings import NamedIssuerSettings, username

GITLAB = "https://gitlab.com"
PREFERRED_USERNAME, EMAIL, SUB = "preferred_username", "email", "sub"
ALL, DIRECT = "all", "direct"


@dataclass(frozen=True, slots=True, kw_only=True)
class GitLabSettings(NamedIssuerSettings):
    url: Annotated[str, Text("the URL of a self-managed GitLab", empty="")] = GITLAB
    username: Annotated[
        str,
        username(
            "the claim with the username. People can change their `preferred_username`, and it is free again then;"
            " `sub` is a number that never changes",
            (PREFERRED_USERNAME, EMAIL, SUB),
        ),
    ] = PREFERRED_USERNAME
    groups: Annotated[
        str,
        Word(
            "which groups count: `all`, also those that somebody is in because of a group above it, or `direct` ones",
            (ALL, DIRECT),
            mistake=f"it must be {ALL} or {DIRECT}",
            hint="",
            empty="",
        ),
    ] = ALL
    allowed_groups: Annotated[
        tuple[str, ...] | None,
        Texts(
            "only members of one of these groups are let in, by their full paths",
            empty="it names no group",
            empty_list="an empty list restricts nothing: remove it if that is intended",
            unset="everybody",
        ),
    ] = None
