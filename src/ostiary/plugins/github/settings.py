"""The settings of the identity provider and the group provider ``github``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from ostiary.core.settings.kinds import AnyText, FilePath, Holds, Text, Texts

GITHUB = "github.com"
EMPTY_LIST = "an empty list restricts nothing: remove it if that is intended"


@dataclass(frozen=True, slots=True, kw_only=True)
class HostSettings:
    """Where GitHub is."""

    hostname: Annotated[str, Text("the host of an Enterprise server", empty="")] = GITHUB
    ca: Annotated[
        Path | None,
        FilePath(
            "authorities (PEM) of that server", holds=Holds.CERTIFICATES, checked=False, empty="", unset="the system's"
        ),
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GitHubIdentitySettings(HostSettings):
    client_id: Annotated[
        str,
        Text(
            "of the application that is registered at GitHub",
            name="clientID",
            empty="",
            missing="it is missing: GitHub gives it to a registered application",
        ),
    ]
    client_secret_file: Annotated[
        Path,
        FilePath(
            "the file with the application's secret",
            holds=Holds.SECRET,
            checked=False,
            empty="",
            missing="it is missing: the file with the application's secret",
        ),
    ]
    allowed_organizations: Annotated[
        tuple[str, ...] | None,
        Texts("only members of one of these organisations are let in", empty_list=EMPTY_LIST, unset="everybody"),
    ] = None
    groups_from: Annotated[
        tuple[str, ...] | None,
        Texts("the organisations whose members and teams are groups", empty_list=EMPTY_LIST, unset="none"),
    ] = None
    token_file: Annotated[
        Path | None,
        FilePath(
            "a token that may read memberships",
            holds=Holds.SECRET,
            checked=False,
            empty="",
            unset="the person's own",
        ),
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GitHubGroupSettings(HostSettings):
    groups_from: Annotated[
        tuple[str, ...],
        Texts(
            "the organisations whose members and teams are groups",
            empty_list=EMPTY_LIST,
            missing="it is missing: the organisations whose members and teams are groups",
        ),
    ]
    token_file: Annotated[
        Path,
        FilePath(
            "a token that may read the organisations",
            holds=Holds.SECRET,
            checked=False,
            empty="",
            missing="it is missing: the file with a token that may read the organisations",
        ),
    ]
    user_prefix: Annotated[
        str, AnyText("what the usernames begin with that are GitHub's; without it they are theirs", unset="none")
    ] = ""
