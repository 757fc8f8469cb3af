"""Merges contexts into the kubeconfig that a person has: under its lock, with a backup, and only where nothing is lost.

Called by ``ostiary kubeconfig --merge`` and by ``ostiary connect``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ostiary.cli.kubeconfig.kubeconfig_file import (
    back_up,
    check_regular,
    content_of,
    hold_lock,
    kubeconfig_files,
    replace,
    text_of,
)
from ostiary.cli.kubeconfig.merge import Conflict, Entry, conflicts, gone_contexts, merge, without_contexts
from ostiary.cli.output import print_note
from ostiary.errors import ConfigurationError


@dataclass(frozen=True, slots=True)
class MergedFile:
    """The file that was changed, the copy of what it was before, and which contexts of the same gateway are gone."""

    path: str
    backup: str | None
    gone: list[str]


def merge_into_file(
    kubeconfig: Entry,
    *,
    force: bool = False,
    prune: bool = False,
    look_for_gone: bool = False,
    may_move: bool = False,
    paths: Sequence[str] = (),
) -> MergedFile:
    """Put the entries of *kubeconfig* into the first of *paths*; without them those that kubectl reads.

    Raises `ConfigurationError` if that would take an entry from somebody, unless with *force*. With *may_move* the
    clusters are known to be ours, and their address may be another one now.
    """
    path, *others = paths or kubeconfig_files()
    check_regular(path)
    with hold_lock(path):
        old = content_of(path)
        text = text_of(old, path)
        # kubectl takes the first entry of a name, so ours would hide one that stands in a later file.
        for file in (path, *others):
            file_conflicts = conflicts(text_of(content_of(file), file), kubeconfig, file=file)
            taken = [each for each in file_conflicts if not (may_move and each.section == "clusters")]
            if taken and not force:
                raise _conflict_error(file, taken)
        gone = gone_contexts(text, kubeconfig, file=path) if look_for_gone else []
        if prune:
            text = without_contexts(text, gone, file=path)
        new = merge(text, kubeconfig, file=path, force=force or may_move).encode()
        backup = back_up(path, old) if old and new != old else None
        if new != old:
            replace(path, new)
    return MergedFile(path, backup, gone)


def tell_merged(kubeconfig: Entry, merged: MergedFile) -> None:
    """Tell a person what is where now."""
    names = [context["name"] for context in kubeconfig["contexts"]]
    backup_note = "" if merged.backup is None else f"; backup: {merged.backup}"
    if len(names) == 1:
        print_note(f"context {names[0]} is in {merged.path}: kubectl --context {names[0]} get pods{backup_note}")
    else:
        print_note(f"{len(names)} contexts are in {merged.path}: {', '.join(names) or 'none'}{backup_note}")


def _conflict_error(file: str, taken: list[Conflict]) -> ConfigurationError:
    return ConfigurationError(
        "the kubeconfig has an entry of this name for another server or user",
        cause="; ".join(map(str, taken)),
        where=file,
        hint="choose another name with --name, or replace it with --force",
        code="kubeconfig-name-taken",
    )
