"""``ostiary-gateway store check``: the contents, integrity and owner of a token store."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime

from ostiary.cli.arguments import JSON, UsageError
from ostiary.cli.exit_codes import FAILED, OK
from ostiary.cli.output import Style, paint, print_json, rows
from ostiary.core.text import printable
from ostiary.errors import ConfigurationError
from ostiary_gateway.capabilities import ability
from ostiary_gateway.cli.options import config_path, run_async
from ostiary_gateway.cli.store_opening import ConfiguredStore, closing, configured_store
from ostiary_gateway.interfaces.store_capabilities import (
    ExaminesStore,
    ObjectStore,
    OwnedStore,
    PortableStore,
    StoreReport,
)
from ostiary_gateway.interfaces.token_store import TokenKind
from ostiary_gateway.sessions import LARGEST_SKEW
from ostiary_gateway.stores.transfer import ContentCounts, count_contents, count_objects

WIDTH = 12


@dataclass(frozen=True, slots=True)
class StoreCheck:
    """The result of a check. `objects` are counted by kind, None if the store has none.

    `owner` is None if the store records no owner, or the configuration names no gateway.
    """

    name: str
    contents: ContentCounts
    objects: Mapping[str, int] | None
    report: StoreReport
    others: tuple[str, ...]
    owner: str | None
    clock_ahead: float | None
    problems: tuple[str, ...] = field(default=())


def check(arguments: argparse.Namespace) -> int:
    configured = configured_store(config_path(arguments))
    if arguments.take_over:
        _check_may_own(configured)
    result = run_async(_examine(configured, take_over=arguments.take_over))
    if arguments.output == JSON:
        print_json(_json(result))
    else:
        _print(result)
    return FAILED if result.problems else OK


def _check_may_own(chosen: ConfiguredStore) -> None:
    if ability(chosen.store, OwnedStore) is None:
        raise UsageError(f"a store of the type {chosen.type} has no owner", hint="leave out --take-over")
    if not chosen.config.owner:
        raise ConfigurationError(
            "this configuration does not say which gateway it is",
            cause="it has no externalURL",
            where=chosen.path,
            hint="set externalURL, by which a store knows its gateway",
            code="config-invalid",
        )


async def _examine(chosen: ConfiguredStore, *, take_over: bool) -> StoreCheck:
    async with closing(chosen):
        store = chosen.store
        # Check the owner before anything is written: the store may belong to another gateway.
        ours, owner = chosen.config.owner, await chosen.owner(take_over=take_over)
        problems: list[str] = []
        if owner in (None, ours):
            # Writes the time, so it shows whether the store is writable.
            await store.heartbeat()
        else:
            hint = "if that is this gateway under an older URL: --take-over"
            problems.append(f"it belongs to the gateway {printable(owner or '')}, and this is {ours} ({hint})")
        contents = await count_contents(store, ability(store, PortableStore))
        keeping = ability(store, ObjectStore)
        objects = None if keeping is None else await count_objects(keeping)
        examining = ability(store, ExaminesStore)
        report = StoreReport() if examining is None else await examining.examine()
        ahead = None if report.time is None else (report.time - datetime.now(UTC)).total_seconds()
        if ahead is not None and abs(ahead) > LARGEST_SKEW.total_seconds():
            problems.append(f"its clock is {_offset(ahead)} that of this machine")
        problems += report.problems
        others = await chosen.others_using()
        return StoreCheck(chosen.name, contents, objects, report, others, owner, ahead, tuple(problems))


def _offset(ahead: float) -> str:
    return f"{abs(ahead):.1f} s {'ahead of' if ahead >= 0 else 'behind'}"


def _print(result: StoreCheck) -> None:
    for row in rows(_rows(result), stream=sys.stdout, width=WIDTH):
        print(row)
    for problem in result.problems:
        print(f"{paint('problem:', Style.BAD, sys.stdout)} {printable(problem)}")
    if not result.problems:
        print(f"{paint('OK', Style.GOOD, sys.stdout)}: no problems found")


def _rows(result: StoreCheck) -> Iterator[tuple[str, str]]:
    contents = result.contents
    yield "store", result.name
    # Both are counted below in more detail than among the store's own facts.
    yield from (fact for fact in result.report.facts if fact[0] not in ("sessions", "tokens"))
    if result.clock_ahead is not None:
        yield "clock", f"{_offset(result.clock_ahead)} this machine's"
    if result.owner is not None:
        yield "gateway", result.owner
    yield "used by", ", ".join(result.others) or "no gateway that the store knows of"
    if contents.sessions is not None:
        yield "sessions", f"{contents.sessions:,}, {contents.sessions_without_tokens:,} of them without a token"
        kinds = ", ".join(f"{contents.tokens.get(kind, 0):,} {kind.value}" for kind in TokenKind)
        yield "tokens", f"{sum(contents.tokens.values()):,}: {kinds}; {contents.unswept:,} expired and not yet deleted"
    else:
        yield "tokens", f"{contents.kept:,}"
    if result.objects is not None:
        yield "objects", ", ".join(f"{count:,} {kind}" for kind, count in result.objects.items()) or "none"
    refusing = f"{contents.marks:,} still refuse logins that began before them"
    yield "revocations", f"the newest is number {contents.head:,}; {refusing}"


def _json(result: StoreCheck) -> dict[str, object]:
    contents = result.contents
    return {
        "store": result.name,
        "facts": dict(result.report.facts),
        "clockAheadSeconds": result.clock_ahead,
        "gateway": result.owner,
        "usedBy": list(result.others),
        "sessions": contents.sessions,
        "sessionsWithoutTokens": contents.sessions_without_tokens,
        "tokens": {kind.value: count for kind, count in contents.tokens.items()},
        "tokensKept": contents.kept,
        "tokensExpired": contents.unswept,
        "objects": result.objects,
        "revocation": contents.head,
        "marks": contents.marks,
        "problems": list(result.problems),
    }
