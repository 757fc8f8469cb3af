"""``ostiary-gateway store migrate`` and ``store after-restore``.

A migration compares two stores, copies what differs, and compares again. `ostiary_gateway.stores.transfer` does the
work.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

from ostiary.cli.arguments import JSON, UsageError
from ostiary.cli.exit_codes import OK
from ostiary.cli.output import print_json, print_note
from ostiary.errors import ConfigurationError
from ostiary_gateway.capabilities import ability
from ostiary_gateway.cli.options import config_path, login_name, run_async
from ostiary_gateway.cli.store_opening import ConfiguredStore, closing, configured_store
from ostiary_gateway.config.reload import store_key
from ostiary_gateway.interfaces.store_capabilities import ObjectStore
from ostiary_gateway.stores.transfer import (
    Comparison,
    MovableStore,
    ObjectComparison,
    check_objects,
    check_target,
    compare,
    compare_objects,
    copy,
    copy_objects,
    count_objects,
    end_restored_sessions,
)

# Progress of a long command, in one terminal line that is overwritten.

# Interval of updates: visible, at no noticeable cost.
SECONDS = 0.1


class Progress:
    """Count towards *expected*, which may be unknown. Printed to stderr if that is a terminal."""

    def __init__(self, what: str, expected: int | None = None, *, now: Callable[[], float] = time.monotonic) -> None:
        self._what = what
        self._expected = expected
        self._now = now
        self._start = now()
        self._printed_at = float("-inf")
        self._is_shown = sys.stderr is not None and sys.stderr.isatty()

    @property
    def seconds(self) -> float:
        return self._now() - self._start

    def __call__(self, count: int) -> None:
        now = self._now()
        if self._is_shown and now - self._printed_at >= SECONDS:
            self._printed_at = now
            self._print(self.text(count))

    def text(self, count: int) -> str:
        of_all = "" if self._expected is None else f" of about {self._expected:,}"
        return f"{self._what} {count:,}{of_all} sessions, {rate(count, self.seconds):,.0f} per second"

    def close(self) -> None:
        if self._is_shown:
            self._print("")

    def _print(self, text: str) -> None:
        # Return to the start of the line, and erase it.
        sys.stderr.write(f"\r\x1b[K{text}")
        sys.stderr.flush()


def rate(count: int, seconds: float) -> float:
    return count / seconds if seconds > 0 else 0.0


def count_text(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


NOT_MOVED = "not moved: logins in progress, rate limit counters, the list of replicas"


@dataclass(frozen=True, slots=True)
class Moved:
    """The result of a migration: both stores before and after it, and how many sessions and objects were written."""

    before: Comparison
    after: Comparison
    objects_before: ObjectComparison
    objects_after: ObjectComparison
    written: int = 0
    objects_written: int = 0
    seconds: float = 0.0

    @property
    def is_same(self) -> bool:
        return self.after.is_same and not self.objects_after.differences


def migrate(arguments: argparse.Namespace) -> int:
    if arguments.dry_run and arguments.running:
        raise UsageError(
            "--dry-run and --running cannot be combined", hint="a comparison may always run beside gateways"
        )
    source = configured_store(arguments.source)
    target = configured_store(arguments.target, may_be_new=not arguments.dry_run)
    _check_different(source, target)
    is_new = target.file is not None and not os.path.exists(target.file)
    moved = run_async(_move(source, target, arguments))
    if arguments.output == JSON:
        print_json(_json(moved, dry_run=arguments.dry_run))
    else:
        _print(moved, dry_run=arguments.dry_run)
    if is_new:
        print_note(f"{target.file} is new: make sure that the user of the gateway can write to it")
    if not arguments.dry_run:
        _report_differences(moved, running=arguments.running)
    return OK


def _check_different(source: ConfiguredStore, target: ConfiguredStore) -> None:
    keys = [store_key(each.config.store, each.config.directory) for each in (source, target)]
    files = [None if each.file is None else os.path.realpath(each.file) for each in (source, target)]
    if keys[0] == keys[1] or (files[0] is not None and files[0] == files[1]):
        raise ConfigurationError(
            "both configurations name the same store",
            cause=f"it is {source.name}",
            where=target.where,
            hint="name the new store in the second configuration",
            code="config-invalid",
        )


async def _move(source: ConfiguredStore, target: ConfiguredStore, arguments: argparse.Namespace) -> Moved:
    async with closing(source, target):
        ours, theirs = source.movable(), target.movable()
        if not arguments.dry_run:
            # The source first: checking the target creates its file.
            if not arguments.running:
                await _check_unused(source, ahead=True)
            await _check_unused(target)
        our_objects, their_objects = ability(source.store, ObjectStore), ability(target.store, ObjectStore)
        before = await _compare("comparing", ours, theirs)
        objects_before = await compare_objects(our_objects, their_objects)
        check_target(before, replacing=arguments.replace)
        check_objects(objects_before, their_objects, replacing=arguments.replace)
        if arguments.dry_run:
            return Moved(before, before, objects_before, objects_before)
        # Last, because this claims a store without an owner.
        await source.check_owner()
        await target.check_owner()
        progress = Progress("copying", before.sessions)
        try:
            sessions_written = await copy(ours, theirs, on_progress=progress)
        finally:
            progress.close()
        seconds = progress.seconds
        objects_written = 0 if their_objects is None else await copy_objects(our_objects, their_objects)
        after = await _compare("verifying", ours, theirs, expected=before.sessions)
        objects_after = await compare_objects(our_objects, their_objects)
        return Moved(before, after, objects_before, objects_after, sessions_written, objects_written, seconds)


async def _compare(what: str, ours: MovableStore, theirs: MovableStore, *, expected: int | None = None) -> Comparison:
    progress = Progress(what, expected)
    try:
        return await compare(ours, theirs, on_progress=progress)
    finally:
        progress.close()


async def _check_unused(store: ConfiguredStore, *, ahead: bool = False) -> None:
    """Raise if a gateway uses *store*. *ahead*: mention that it can be copied nevertheless."""
    others = await store.others_using()
    hint = "stop the gateways first; one that crashed is listed for a minute"
    if ahead:
        hint += "; to copy ahead while they run, add --running"
    if others:
        raise ConfigurationError(
            "the store is in use",
            cause=f"it is open in: {', '.join(others)}",
            where=store.where,
            hint=hint,
            code="store-in-use",
        )


def _report_differences(moved: Moved, *, running: bool) -> None:
    if running:
        print_note("run it again without --running once the gateways have stopped: it copies what has changed since")
        return
    if not moved.is_same:
        raise ConfigurationError(
            "the source was changed while it was copied",
            cause=_differences(moved.after, moved.objects_after) or "its log of revocations went on",
            hint="stop the gateways, and run this command again: it copies what is missing",
            code="store-changed",
        )


def _differences(comparison: Comparison, objects: ObjectComparison) -> str:
    parts = (
        (comparison.missing, "session", "to copy"),
        (comparison.changed, "session", "changed after the copy"),
        (comparison.ended, "session", "ended after the copy"),
        (comparison.foreign, "session", "only in the target"),
        (objects.missing + objects.changed, "object", "to copy"),
        (objects.foreign, "object", "only in the target"),
    )
    return ", ".join(f"{count_text(count, noun)} {what}" for count, noun, what in parts if count)


def _print(moved: Moved, *, dry_run: bool) -> None:
    if dry_run:
        print(f"{_contents(moved.before, moved.objects_before)}")
        print(_differences(moved.before, moved.objects_before) or "nothing to copy: both stores have the same content")
        return
    speed = f"{moved.seconds:.1f} s, {rate(moved.written, moved.seconds):,.0f} per second"
    print(f"{count_text(moved.written, 'session')} written ({speed})")
    if moved.objects_written:
        print(f"{count_text(moved.objects_written, 'object')} written or deleted")
    if moved.is_same:
        print(f"both stores have the same content: {_contents(moved.after, moved.objects_after)}")
    print(NOT_MOVED)


def _contents(comparison: Comparison, objects: ObjectComparison) -> str:
    log = comparison.source_log
    parts = [f"{count_text(comparison.sessions, 'session')} with {count_text(comparison.tokens, 'token')}"]
    if objects.objects:
        parts.append(count_text(objects.objects, "object"))
    return ", ".join([*parts, f"revocations up to number {log.head:,}"])


def _json(moved: Moved, *, dry_run: bool) -> dict[str, object]:
    before, after = moved.before, moved.after
    return {
        "dryRun": dry_run,
        "sessions": after.sessions,
        "tokens": after.tokens,
        "revocation": after.source_log.head,
        "objects": moved.objects_after.objects,
        "before": _differences_json(before, moved.objects_before),
        "written": moved.written,
        "objectsWritten": moved.objects_written,
        "seconds": round(moved.seconds, 3),
        "same": moved.is_same,
        "differences": _differences_json(after, moved.objects_after),
    }


def _differences_json(comparison: Comparison, objects: ObjectComparison) -> dict[str, object]:
    return {
        "missing": comparison.missing,
        "changed": comparison.changed,
        "ended": comparison.ended,
        "foreign": comparison.foreign,
        "log": not comparison.is_same_log,
        "objects": {"missing": objects.missing, "changed": objects.changed, "foreign": objects.foreign},
    }


# ``ostiary-gateway store after-restore``: invalidate every session that a backup restored.


def after_restore(arguments: argparse.Namespace) -> int:
    configured = configured_store(config_path(arguments))
    ended, objects = run_async(_end(configured))
    if arguments.output == JSON:
        print_json({"ended": ended, "objects": objects})
        return OK
    print(f"{count_text(ended, 'session')} ended: everybody signs in again")
    if objects:
        # It is unknown which of them were deleted after the backup, and without them all accounts would be gone.
        kinds = ", ".join(f"{count:,} {kind}" for kind, count in objects.items())
        print_note(f"the backup has brought back {kinds}: delete again what was deleted after it was made")
    return OK


async def _end(chosen: ConfiguredStore) -> tuple[int, dict[str, int]]:
    async with closing(chosen):
        await chosen.check_owner()
        by = f"{login_name()} (ostiary-gateway store after-restore)"
        ended = await end_restored_sessions(chosen.movable(), by=by)
        keeping = ability(chosen.store, ObjectStore)
        return ended, {} if keeping is None else await count_objects(keeping)
