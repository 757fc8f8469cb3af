"""The settings of the authorization provider ``rbac``."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Annotated

from ostiary.core.yaml import ConfigSection
from ostiary_gateway.settings.kinds import Duration, FilePaths, Flag, Holds, Integer, Text
from ostiary_gateway.settings.sections import OptionalSection

NO_POLICY = "rbac needs the files or directories of its policy"
LEAST_STALE = timedelta(seconds=30)
# The limit of the index; see `ostiary_gateway.providers.rbac.policy`.
MOST_ENTRIES = 2_000_000


@dataclass(frozen=True, slots=True)
class FromSettings:
    """The policy of a cluster, instead of files."""

    upstream: Annotated[str, Text("the upstream whose roles and bindings decide; it must be a Kubernetes API server")]
    max_stale: Annotated[
        timedelta,
        Duration(
            "for how long the last policy is used while the cluster cannot be asked; then nothing is allowed",
            least=LEAST_STALE,
            mistake="it must be at least 30s",
        ),
    ] = timedelta(minutes=10)
    max_entries: Annotated[
        int,
        Integer(
            "how large its policy may be: the subjects of all bindings, and what the rules of all roles list; beyond it"
            " the policy counts as one that cannot be read. 2000000 at most"
        ),
    ] = 500_000
    relist: Annotated[
        timedelta,
        Duration("how often everything is listed again, in case that a watch has missed something"),
    ] = timedelta(hours=6)

    def check(self, fields: ConfigSection) -> None:
        if self.max_entries > MOST_ENTRIES and fields.is_right("maxEntries"):
            fields.problem(f"it must be at most {MOST_ENTRIES}", "maxEntries")


@dataclass(frozen=True, slots=True)
class RbacSettings:
    """The settings of the authorization provider ``rbac``."""

    paths: Annotated[
        tuple[Path, ...],
        FilePaths(
            "files or directories with Role, RoleBinding, ClusterRole, ClusterRoleBinding",
            holds=Holds.POLICY,
            unset="none: `from` must be set",
        ),
    ] = ()
    defaults: Annotated[bool, Flag("whether Kubernetes' own roles and bindings are there as well")] = True
    watch: Annotated[bool, Flag("whether changed files are read again")] = True
    from_cluster: Annotated[
        FromSettings | None,
        OptionalSection(
            "the cluster whose own roles and bindings decide, in place of `paths`",
            FromSettings,
            name="from",
            unset="the policy is in files",
        ),
    ] = None

    def check(self, fields: ConfigSection) -> None:
        if self.from_cluster is None:
            if not self.paths and fields.is_right("paths", "from"):
                fields.problem(NO_POLICY, "paths", "or `from`, for those of a cluster")
            return
        for name in ("paths", "defaults", "watch"):
            if name in fields:
                message = f"{name} is for a policy in files, and this one is the cluster's (from)"
                fields.problem(message, name, "remove one of them; a chain may have a provider for each")
