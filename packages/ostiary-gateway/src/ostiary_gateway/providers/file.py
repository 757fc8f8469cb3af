"""The group provider ``file``: groups and their members in a YAML file, which is read again when it changes.

    groups: [{name: teams, type: file, path: groups.yaml}]

    # groups.yaml
    developers: [alice, "staff:bob"]
    operators: [alice]

A member is named as in the token, with the prefix of its identity provider.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from ostiary.core.clock import SYSTEM_CLOCK, Clock
from ostiary.core.watched_file import watched_yaml
from ostiary.core.yaml import ConfigReader, ConfigSection, Document
from ostiary.errors import ConfigurationError, LoginRefused, ProviderError
from ostiary.model import UserInfo
from ostiary_gateway.catalog import Context
from ostiary_gateway.interfaces.group import ListedGroup, Membership
from ostiary_gateway.interfaces.identity import LoginRequest
from ostiary_gateway.settings.declare import read_settings
from ostiary_gateway.settings.kinds import FilePath, Holds


@dataclass(frozen=True, slots=True)
class FileGroupSettings:
    path: Annotated[
        Path,
        FilePath(
            "a YAML file, each group with the list of its members, named as in the token; read again when it changes",
            holds=Holds.POLICY,
            checked=False,
            empty="",
            missing="it is missing: the file with the groups",
        ),
    ]


_Groups = Mapping[str, ListedGroup]


class FileGroups:
    """Group provider that reads groups and members from a YAML file."""

    def __init__(self, *, path: str | os.PathLike[str], clock: Clock = SYSTEM_CLOCK) -> None:
        self._source = f"file {Path(path).name}"
        self._file = watched_yaml(path, _groups, clock=clock)

    @classmethod
    def from_config(cls, fields: ConfigSection, context: Context) -> FileGroups:
        provider = cls(path=read_settings(FileGroupSettings, fields, context.directory).path, clock=context.clock)
        if fields.is_right("path"):
            provider._file.check(fields, "path")
        return provider

    async def groups_of(
        self, user: UserInfo, relevant: AbstractSet[str], request: LoginRequest
    ) -> tuple[Membership, ...]:
        groups = self._current()
        names = sorted(name for name in relevant if name in groups and user.username in groups[name].members)
        return tuple(Membership(group, self._source) for group in names)

    async def groups_from_provider(
        self, user: UserInfo, relevant: AbstractSet[str], request: LoginRequest
    ) -> tuple[Membership, ...]:
        raise LoginRefused("there is no sign-in to continue: start again", cause="a group file sends nobody elsewhere")

    def listed_groups(self) -> tuple[ListedGroup, ...]:
        return tuple(self._current().values())

    def _current(self) -> _Groups:
        try:
            return self._file.current()
        except ConfigurationError as error:
            raise ProviderError("the groups cannot be read", cause=error.cause, where=error.where) from error


def _groups(document: Document) -> _Groups:
    reading = ConfigReader(document)
    groups: dict[str, ListedGroup] = {}
    for group in reading.root:
        members = reading.root.strings(group)
        groups[group] = ListedGroup(group, frozenset(members), reading.root.place(group))
        if group == "":
            reading.root.problem("a group without a name", group)
        # An empty name would match unintentionally.
        if "" in members:
            reading.root.problem("a member without a name", group)
    # Strictly: of a duplicate group, one of the two lists of members would be silently ignored.
    reading.finish("the group file cannot be used", strict=True)
    return groups
