"""Live decisions as server-sent events: https://html.spec.whatwg.org/multipage/server-sent-events.html

    id: <time>    event: decision   data: {"id": .., "at": .., "outcome": .., "user": .., "request": .., ..}
                  event: missed     data: {"count": ..}             number of decisions left out
                  event: full       data: {}                        too many watchers: do not reconnect
                  event: end        data: {}                        the session or the permission has ended

Session and permission are checked again every few seconds. The stream ends if either has ended or cannot be checked.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from datetime import datetime

from ostiary.core.clock import Clock
from ostiary.errors import OstiaryError
from ostiary_gateway.authorization.recent_decisions import RecentDecision
from ostiary_gateway.interfaces.identity import LoginRequest
from ostiary_gateway.login import responses as answers
from ostiary_gateway.login.admin.requests import OUTCOMES
from ostiary_gateway.login.admin.searches import (
    REQUEST_FIELDS,
    DecidedRequest,
    RequestSearch,
    describe,
    of_decision,
    read_moment,
    read_values,
)
from ostiary_gateway.login.admin.tables import moment_text, shown
from ostiary_gateway.login.browser_session import Visitor
from ostiary_gateway.login.pages.messages import say
from ostiary_gateway.login.responses import COMMON, LoginAnswer
from ostiary_gateway.login.visit import only
from ostiary_gateway.replicas.decision_feed import DecisionFeed, IsWanted

TICK_SECONDS = 1.0
CHECK_SECONDS = 2.0
HEARTBEAT_SECONDS = 15.0
# The browser then reconnects, perhaps to another worker.
LONGEST_SECONDS = 3600.0
RETRY_MILLISECONDS = 3000
# Limit for decisions made between the load of the page and the start of the stream.
MOST_AT_ONCE = 100

StillAllowed = Callable[[], Awaitable[bool]]


class DecisionStreams:
    """Streams of live decisions, as server-sent events."""

    def __init__(self, feed: DecisionFeed, clock: Clock) -> None:
        self._feed = feed
        self._monotonic = clock.monotonic

    async def answer(self, request: LoginRequest, visitor: Visitor, still_allowed: StillAllowed) -> LoginAnswer:
        try:
            search = RequestSearch(read_values(request, REQUEST_FIELDS))
            since = _begin(request)
        except ValueError as error:
            return answers.error(400, str(error))

        def is_wanted(decision: RecentDecision) -> bool:
            return search.matches(decision.attributes, decision.decision, decision.at)

        username = visitor.session.user.username
        if self._feed.is_full_for(username):
            return answers.error(429, "too many people watch decisions at this gateway: close another page, or wait")
        headers = (("Content-Type", "text/event-stream; charset=utf-8"), ("X-Accel-Buffering", "no"), *COMMON)
        texts = _StreamTexts()
        return LoginAnswer(200, headers, stream=lambda: self._events(username, is_wanted, since, texts, still_allowed))

    async def _events(
        self,
        username: str,
        is_wanted: IsWanted,
        since: datetime | None,
        texts: _StreamTexts,
        still_allowed: StillAllowed,
    ) -> AsyncGenerator[bytes]:
        # Not earlier: until the body is read, the client may be gone.
        watcher = await self._feed.open(username, is_wanted)
        if watcher is None:
            yield _event("full", {})
            return
        begun = checked = sent = self._monotonic()
        try:
            first = await self._first(is_wanted, since)
            known = {decision.id for decision in first}
            yield f"retry: {RETRY_MILLISECONDS}\n\n".encode() + b"".join(texts.event(each) for each in first)
            while True:
                decisions, missed = await watcher.wait(TICK_SECONDS)
                now = self._monotonic()
                if now - checked >= CHECK_SECONDS:
                    checked = now
                    if not await still_allowed():
                        yield _event("end", {})
                        return
                if watcher.is_closed or now - begun >= LONGEST_SECONDS:
                    return
                data = b"".join(texts.event(each) for each in decisions if each.id not in known)
                if missed:
                    data += _event("missed", {"count": missed})
                if not data and now - sent >= HEARTBEAT_SECONDS:
                    data = b": nothing new\n\n"
                if data:
                    sent = now
                yield data
        finally:
            self._feed.leave(watcher)

    async def _first(self, is_wanted: IsWanted, since: datetime | None) -> list[RecentDecision]:
        """Return the decisions since the page was rendered or the stream broke, oldest first."""
        if since is None:
            return []
        latest = await self._feed.latest(MOST_AT_ONCE)
        return [each for each in reversed(latest) if each.at >= since and is_wanted(each)]


async def is_allowed(find: Callable[[], Awaitable[bool]]) -> bool:
    """Return the result of *find*, or False if it cannot be determined."""
    try:
        return await find()
    except OstiaryError:
        return False


class _StreamTexts:
    """Texts of a stream, in the language of the request that started it."""

    def __init__(self) -> None:
        self._outcomes = {outcome: str(say(text)) for outcome, text in OUTCOMES.items()}
        self._stream, self._no_rule = str(say("admin.stream")), str(say("admin.no_rule"))

    def event(self, decision: RecentDecision) -> bytes:
        request = of_decision(decision)
        return _event("decision", self._fields(request), place=decision.at.isoformat())

    def _fields(self, request: DecidedRequest) -> Mapping[str, object]:
        info, is_allowed = request.attributes.request, request.decision.allowed
        actor = f" ({shown(request.actor)})" if request.actor else ""
        return {
            "id": request.id,
            "at": moment_text(request.at),
            "allowed": is_allowed,
            "outcome": self._outcomes[request.outcome],
            "user": shown(request.attributes.user.username) + actor,
            "request": describe(info),
            "upstream": shown(info.upstream),
            "reason": shown(request.decision.reason) or ("" if is_allowed else self._no_rule),
            "took": self._stream if request.is_stream else request.took,
        }


def _begin(request: LoginRequest) -> datetime | None:
    """Return the start of the stream: the last event id of a reconnecting browser, or the time of the page."""
    return read_moment(request.header("last-event-id") or only(request.query, "from") or "")


def _event(name: str, data: Mapping[str, object], *, place: str = "") -> bytes:
    # JSON output has no line breaks, so no value can end the event.
    first = f"id: {place}\n" if place else ""
    return f"{first}event: {name}\ndata: {json.dumps(data)}\n\n".encode()
