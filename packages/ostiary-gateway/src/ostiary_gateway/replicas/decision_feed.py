"""Live feed of the decisions of all workers of this machine, for the administration pages.

    every worker: RecentDecisions  ->  poll, once a second while there are watchers  ->  each Watcher's queue

The worker that serves the watcher polls the others through the supervisor. Polling makes them record decisions; they
stop when the polls stop. Watchers (per user and in total), polls and queues are bounded, and drops are counted.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
import os
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import cast

from ostiary_gateway.authorization.recent_decisions import WATCHED_SECONDS, RecentDecision, RecentDecisions
from ostiary_gateway.replicas import worker_messages as messages
from ostiary_gateway.replicas.worker_ipc import NoOtherWorkers, Workers
from ostiary_gateway.replicas.worker_messages import DecisionBatchJson, DecisionQuestionJson, RecentDecisionJson

POLL_SECONDS = 1.0
# Per worker.
MOST_PER_POLL = 100
# How long a worker records after a poll. Several polls may fail before it stops.
POLLED_SECONDS = 10.0
MOST_WAITING = 100
MOST_WATCHERS = 32
MOST_OF_ONE_USER = 4

log = logging.getLogger("ostiary.gateway")

IsWanted = Callable[[RecentDecision], bool]


class Watcher:
    """One subscriber of the feed: its queue, and the number of decisions that were dropped."""

    def __init__(self, username: str, is_wanted: IsWanted) -> None:
        self.username = username
        self._is_wanted = is_wanted
        self._waiting: deque[RecentDecision] = deque()
        self._missed = 0
        self._changed = asyncio.Event()
        self.is_closed = False

    def offer(self, decision: RecentDecision) -> None:
        if not self._is_wanted(decision):
            return
        if len(self._waiting) >= MOST_WAITING:
            self._missed += 1
        else:
            self._waiting.append(decision)
        self._changed.set()

    def miss(self, number: int) -> None:
        """Add *number* decisions that were dropped before `is_wanted` could filter them."""
        if number:
            self._missed += number
            self._changed.set()

    def close(self) -> None:
        self.is_closed = True
        self._changed.set()

    async def wait(self, seconds: float) -> tuple[list[RecentDecision], int]:
        """Return the queued decisions and the number of dropped ones; empty after *seconds* without a decision."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._changed.wait()
        self._changed.clear()
        decisions, missed = list(self._waiting), self._missed
        self._waiting.clear()
        self._missed = 0
        return decisions, missed


class DecisionFeed:
    """The feed of one configuration. A reload closes it, and clients have to reconnect."""

    def __init__(self, recent: RecentDecisions, siblings: Callable[[], Workers] = NoOtherWorkers) -> None:
        self._recent = recent
        self._siblings = siblings
        self._watchers: list[Watcher] = []
        self._is_closed = False
        self._polling: asyncio.Task[None] | None = None
        self._begun = asyncio.Event()
        # The position in each worker's decisions: the last number that was read, and how many were left out.
        self._places: dict[str, tuple[int, int]] = {}

    async def latest(self, limit: int) -> list[RecentDecision]:
        """Return the latest decisions, newest first. Makes all workers record for `WATCHED_SECONDS`."""
        batches = await self._ask({"after": {}, "limit": limit, "seconds": WATCHED_SECONDS})
        decisions = (_decision(each) for batch in batches for each in batch["decisions"])
        return heapq.nlargest(limit, decisions, key=lambda decision: decision.place)

    async def recall(self, decision_id: str) -> RecentDecision | None:
        decision = self._recent.recall(decision_id)
        if decision is not None:
            return decision
        answers = await self._siblings().ask(messages.DECISION, decision_id)
        return _decision(cast(RecentDecisionJson, answers[0])) if answers else None

    # --- watching ---

    async def open(self, username: str, is_wanted: IsWanted) -> Watcher | None:
        """Return a new watcher, or None if there are too many. The caller must pass it to `leave`."""
        if self.is_full_for(username):
            return None
        watcher = Watcher(username, is_wanted)
        self._watchers.append(watcher)
        if self._polling is None:
            self._begun = asyncio.Event()
            self._polling = asyncio.get_running_loop().create_task(self._poll_while_watched())
        # After the first poll no decision is missed. Earlier ones are in `latest`.
        await self._begun.wait()
        return watcher

    def is_full_for(self, username: str) -> bool:
        of_user = sum(watcher.username == username for watcher in self._watchers)
        return self._is_closed or len(self._watchers) >= MOST_WATCHERS or of_user >= MOST_OF_ONE_USER

    def leave(self, watcher: Watcher) -> None:
        self._watchers.remove(watcher)

    def close(self) -> None:
        """End all streams, because another configuration has replaced this one."""
        self._is_closed = True
        for watcher in self._watchers:
            watcher.close()

    async def poll(self) -> None:
        """Fetch the new decisions of every worker, and offer them to all watchers."""
        is_first, known = not self._places, set(self._places)
        question: DecisionQuestionJson = {
            "after": dict(self._places),
            "limit": MOST_PER_POLL,
            "seconds": POLLED_SECONDS,
        }
        batches = await self._ask(question)
        # The position of a worker that did not respond in time stays.
        self._places |= {batch["worker"]: (batch["number"], batch["left_out"]) for batch in batches}
        if is_first:
            return
        decisions = [_decision(each) for batch in batches for each in batch["decisions"]]
        missed = sum(batch["missed"] for batch in batches if batch["worker"] in known)
        for decision in sorted(decisions, key=lambda decision: decision.place):
            for watcher in self._watchers:
                watcher.offer(decision)
        for watcher in self._watchers:
            watcher.miss(missed)

    async def _poll_while_watched(self) -> None:
        try:
            while self._watchers:
                await self._poll_safely()
                self._begun.set()
                await asyncio.sleep(POLL_SECONDS)
        finally:
            self._polling, self._places = None, {}
            self._begun.set()

    async def _poll_safely(self) -> None:
        try:
            await self.poll()
        except (KeyError, TypeError, ValueError) as error:
            # The worker runs another version, during an update of the gateway.
            log.error("decisions of another worker cannot be read", extra={"cause": type(error).__name__})

    async def _ask(self, question: DecisionQuestionJson) -> list[DecisionBatchJson]:
        ours = messages.batch_json(self._recent, str(os.getpid()), question)
        answers = await self._siblings().ask(messages.DECISIONS, question)
        return [ours, *cast(list[DecisionBatchJson], answers)]


def _decision(value: RecentDecisionJson) -> RecentDecision:
    return messages.decision_from_json(value)
