"""Decisions of all workers of this machine as they are made, for those who watch.

    every worker: authorize.recent_decisions  ->  poll, once a second while somebody watches  ->  each Watcher's queue

Called by the administration pages. Whoever watches is at one worker. That one asks the others through the supervisor,
which also makes them record: they stop by themselves when nobody asks any more. Everything is bounded: the watchers, of
one user and in all, what each poll fetches, and what waits for a watcher. What is left out is counted, and shown.
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
# Of each worker.
MOST_PER_POLL = 100
# As long as several polls may fail.
POLLED_SECONDS = 10.0
MOST_WAITING = 100
MOST_WATCHERS = 32
MOST_OF_ONE_USER = 4

log = logging.getLogger("ostiary.gateway")

IsWanted = Callable[[RecentDecision], bool]


class Watcher:
    """Somebody who watches: what waits for them, and how many decisions they missed."""

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
        """So many were left out before anybody could say whether they are wanted."""
        if number:
            self._missed += number
            self._changed.set()

    def close(self) -> None:
        self.is_closed = True
        self._changed.set()

    async def wait(self, seconds: float) -> tuple[list[RecentDecision], int]:
        """What has come, and how many were missed; nothing, if nothing comes for so many seconds."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._changed.wait()
        self._changed.clear()
        decisions, missed = list(self._waiting), self._missed
        self._waiting.clear()
        self._missed = 0
        return decisions, missed


class DecisionFeed:
    """Of one configuration: with the next one, whoever watches has to ask again."""

    def __init__(self, recent: RecentDecisions, siblings: Callable[[], Workers] = NoOtherWorkers) -> None:
        self._recent = recent
        self._siblings = siblings
        self._watchers: list[Watcher] = []
        self._is_closed = False
        self._polling: asyncio.Task[None] | None = None
        self._begun = asyncio.Event()
        # How far each worker has been read: the number, and how many were left out.
        self._places: dict[str, tuple[int, int]] = {}

    async def latest(self, limit: int) -> list[RecentDecision]:
        """The latest decisions, the newest first. From now on all workers record, for a while."""
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
        """Begin to watch; None if too many do already. Whoever has begun must `leave`."""
        if self.is_full_for(username):
            return None
        watcher = Watcher(username, is_wanted)
        self._watchers.append(watcher)
        if self._polling is None:
            self._begun = asyncio.Event()
            self._polling = asyncio.get_running_loop().create_task(self._poll_while_watched())
        # From here on nothing is missed: what was before, `latest` says.
        await self._begun.wait()
        return watcher

    def is_full_for(self, username: str) -> bool:
        of_user = sum(watcher.username == username for watcher in self._watchers)
        return self._is_closed or len(self._watchers) >= MOST_WATCHERS or of_user >= MOST_OF_ONE_USER

    def leave(self, watcher: Watcher) -> None:
        self._watchers.remove(watcher)

    def close(self) -> None:
        """Another configuration has taken over: all streams end, and begin again there."""
        self._is_closed = True
        for watcher in self._watchers:
            watcher.close()

    async def poll(self) -> None:
        """Fetch what is new at every worker, and offer it to all who watch."""
        is_first, known = not self._places, set(self._places)
        question: DecisionQuestionJson = {
            "after": dict(self._places),
            "limit": MOST_PER_POLL,
            "seconds": POLLED_SECONDS,
        }
        batches = await self._ask(question)
        # Of a worker that did not answer in time the place stays what it is.
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
            # A worker of another version, while the gateway is being updated.
            log.error("decisions of another worker cannot be read", extra={"cause": type(error).__name__})

    async def _ask(self, question: DecisionQuestionJson) -> list[DecisionBatchJson]:
        ours = messages.batch_json(self._recent, str(os.getpid()), question)
        answers = await self._siblings().ask(messages.DECISIONS, question)
        return [ours, *cast(list[DecisionBatchJson], answers)]


def _decision(value: RecentDecisionJson) -> RecentDecision:
    return messages.decision_from_json(value)
