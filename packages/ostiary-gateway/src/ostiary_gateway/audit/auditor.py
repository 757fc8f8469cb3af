"""The auditor: makes one audit event per stage of a request, according to the audit policy.

    authorize  ->  prepare (once per user and request line)  ->  record_received  ->  ...  ->  complete  ->  sinks

Denied and invalid requests are recorded too. `prepare` serializes what is known before the request is forwarded, and
the proxy caches the result with the decision; completing an event joins a few strings. Nothing here waits, except for
the disk in blocking mode.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from weakref import WeakSet

from ostiary.core.bounded_cache import Bounded
from ostiary.core.clock import SYSTEM_CLOCK, Clock
from ostiary.core.scopes import Delegation
from ostiary.errors import AuditUnavailable
from ostiary.model import Decision, RequestInfo, UserInfo
from ostiary_gateway.authorization.implied_groups import with_implied_groups
from ostiary_gateway.capabilities import ability
from ostiary_gateway.interfaces.audit import RecordsAtOnce
from ostiary_gateway.interfaces.lifecycle import Closes
from ostiary_gateway.wire import audit as wire
from ostiary_gateway.wire import audit_policy
from ostiary_gateway.wire.audit_policy import AuditLevel, AuditScope, Policy, Stage

# Request ids.

_IDS_AT_ONCE = 256
_TABLES_LAST = 256


class AuditIds:
    """A generator of request ids: random UUIDs, made many at a time.

    Ids are unique in a process and never shared with a forked process.
    """

    __slots__ = ("__weakref__", "_beginnings", "_endings", "_ids", "_tables_left")

    def __init__(self) -> None:
        self._ids: list[str] = []
        self._beginnings: list[str] = []
        self._endings: list[str] = []
        self._tables_left = 0
        _INSTANCES.add(self)

    def take(self) -> str:
        """Return a new id."""
        if not self._ids:
            self._refill()
        return self._ids.pop()

    def forget(self) -> None:
        """Discard the ids that are generated but not yet used."""
        self._ids.clear()
        self._tables_left = 0

    def _refill(self) -> None:
        """Generate 256 ids. Any two of them differ at both ends, where users look.

        They share the middle part, and the ends are paired differently each time: formatting every id in full would
        cost twenty times as much.
        """
        if not self._tables_left:
            self._beginnings = [os.urandom(4).hex() for _ in range(_IDS_AT_ONCE)]
            self._endings = [os.urandom(6).hex() for _ in range(_IDS_AT_ONCE)]
            self._tables_left = _TABLES_LAST
        self._tables_left -= 1
        shift, *digits = os.urandom(6)
        text = bytes(digits).hex()
        middle = f"-{text[:4]}-4{text[4:7]}-{'89ab'[shift & 3]}{text[7:]}-"
        pairs = zip(self._beginnings, self._endings[shift:] + self._endings[:shift], strict=True)
        self._ids.extend([beginning + middle + ending for beginning, ending in pairs])


# For the fork handler below, which must reach every instance.
_INSTANCES: WeakSet[AuditIds] = WeakSet()


def _forget_all() -> None:
    for ids in _INSTANCES:
        ids.forget()


if hasattr(os, "register_at_fork"):
    # Two workers must not both use the ids that their parent generated.
    os.register_at_fork(after_in_child=_forget_all)

# Timestamps.

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_MILLISECONDS = tuple(f"{number:03d}" for number in range(1000))
_MICROSECONDS = tuple(f"{number:03d}Z" for number in range(1000))


class Timestamps:
    """Format monotonic seconds as the time of day, to the microsecond.

    Reading the time of day and formatting a date would cost more than the rest of an event. So the two clocks are
    compared once a second, which also follows changes of the system clock, and only the fraction is formatted each
    time.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._prefix = ""
        # Add this to monotonic microseconds to get the microseconds since the second in `_prefix`.
        self._offset = float("-inf")
        self._difference = 0
        self._good_until = float("-inf")

    def both(self, first: float, second: float) -> tuple[str, str]:
        """Return the timestamps of two moments. The fast path is for two moments in the same second."""
        if second < self._good_until:
            offset, prefix = self._offset, self._prefix
            early, late = int(first * 1e6 + offset), int(second * 1e6 + offset)
            if 0 <= early <= late < 1_000_000:
                return (
                    f"{prefix}{_MILLISECONDS[early // 1000]}{_MICROSECONDS[early % 1000]}",
                    f"{prefix}{_MILLISECONDS[late // 1000]}{_MICROSECONDS[late % 1000]}",
                )
        return self.stamp(first), self.stamp(second)

    def stamp(self, at: float) -> str:
        if at >= self._good_until:
            self._compare()
        microsecond = int(at * 1e6 + self._offset)
        if not 0 <= microsecond < 1_000_000:
            microsecond = self._format(at)
        return f"{self._prefix}{_MILLISECONDS[microsecond // 1000]}{_MICROSECONDS[microsecond % 1000]}"

    def _compare(self) -> None:
        now = self._clock.monotonic()
        # Whole microseconds: a float cannot represent the seconds since 1970 to the microsecond.
        self._difference = (self._clock.now() - _EPOCH) // _MICROSECOND - int(now * 1e6 + 0.5)
        self._good_until = now + 1.0
        self._format(now)

    def _format(self, at: float) -> int:
        second, microsecond = divmod(self._difference + int(at * 1e6 + 0.5), 1_000_000)
        self._prefix = datetime.fromtimestamp(second, UTC).strftime("%Y-%m-%dT%H:%M:%S.")
        self._offset = float(self._difference - second * 1_000_000) + 0.5
        return microsecond


LARGEST_BODY = 256 * 1024
_ORIGINS_KEPT = 4096
_LONGEST_KEPT_AGENT = 256
# Each is a few kilobytes at most.
_DELEGATIONS_KEPT = 512

log = logging.getLogger("ostiary_gateway.audit")


class Auditor:
    """Make audit events and pass them to every sink, in order.

    Times are monotonic seconds of the clock, which the proxy has already read; the time of day is read once a second.
    With *blocking* sinks `record_received` and `complete` raise `AuditUnavailable` when an event cannot be stored, and
    the request fails with a 500. The first stage is then recorded whatever the policy omits. Without *may_refuse* no
    sink can fail a request, whatever it raises.
    """

    def __init__(
        self,
        policy: Policy,
        sinks: Sequence[RecordsAtOnce],
        *,
        clock: Clock = SYSTEM_CLOCK,
        largest_body: int = LARGEST_BODY,
        blocking: bool = False,
        may_refuse: bool = True,
        tells_upstream: bool = False,
    ) -> None:
        self.policy = policy
        # False with a single upstream: every event would name it.
        self._tells_upstream = tells_upstream
        self.blocking = blocking
        self._may_refuse = may_refuse
        self.sinks = tuple(sinks)
        self.largest_body = largest_body
        self.events = 0
        # Events lost because a sink raised, which it must not.
        self._failed = 0
        self._failures_told: set[tuple[int, type[Exception]]] = set()
        self.timestamps = Timestamps(clock)
        # JSON of a response without a message, by status: see `Prepared.complete`.
        self.outcomes: dict[int, str] = {}
        # Generates request ids. An id sent by the client is never used: a client could hide behind another client's id.
        self.audit_id = AuditIds().take
        self._origins: Bounded[tuple[tuple[str, ...], str], str] = Bounded(_ORIGINS_KEPT)
        self._delegations: Bounded[tuple[str, str], wire.KeptNotes] = Bounded(_DELEGATIONS_KEPT)

    def origin(self, source_ips: Sequence[str], user_agent: str = "") -> str:
        """Return the JSON of a request's origin. It is cached, because few clients send many requests."""
        key = (tuple(source_ips), user_agent[: wire.LONGEST_USER_AGENT + 1])
        origin = self._origins.get(key)
        if origin is None:
            origin = wire.origin(*key)
            if len(user_agent) <= _LONGEST_KEPT_AGENT:
                self._origins.keep(key, origin)
        return origin

    def prepare(
        self,
        request: RequestInfo,
        user: UserInfo | None,
        *,
        request_uri: str,
        decision: Decision | None = None,
        long_running: bool = False,
        impersonated: UserInfo | None = None,
        impersonation_constraint: str = "",
        delegation: Delegation | None = None,
        step_up: str = "",
    ) -> Prepared | None:
        """Return what the events of such requests share, or None if the policy records none of them.

        *user* is None for an unauthenticated request. The policy rule is chosen by the user, not by the impersonated
        one: whom a user acts for is part of what they did. *step_up* names the step-up rules that apply.
        """
        user = None if user is None else with_implied_groups(user)
        impersonated = None if impersonated is None else with_implied_groups(impersonated)
        scope = self.policy.scope(request, user)
        if scope.level is AuditLevel.NONE:
            return None
        frame = wire.frame(
            scope.level,
            request,
            user,
            request_uri=request_uri,
            impersonated=impersonated,
            impersonation_constraint=impersonation_constraint,
            annotations=_annotations(request, decision, request.upstream if self._tells_upstream else "", step_up),
            kept=None if delegation is None else self._notes_about(delegation),
        )
        bodies = not audit_policy.carries_credentials(request)
        return Prepared(self, scope, frame, long_running=long_running, bodies=bodies)

    def _notes_about(self, delegation: Delegation) -> wire.KeptNotes:
        """Return the annotations for the scope and the actor of a token. The event's user is the owner."""
        scope, actor = str(delegation), delegation.actor
        notes = self._delegations.get((scope, actor))
        if notes is None:
            notes = wire.kept_notes({audit_policy.SCOPE: scope, **({audit_policy.ACTOR: actor} if actor else {})})
            self._delegations.keep((scope, actor), notes)
        return notes

    def outcome(self, status: int) -> str:
        """Return the JSON of a response with this status and no message."""
        text = wire.outcome(status)
        # Bounded: an upstream can send any three-digit status, but no other.
        if 0 <= status < 1000:
            self.outcomes[status] = text
        return text

    def accept(self, line: str) -> None:
        self.events += 1
        for sink in self.sinks:
            try:
                sink.accept(line)
            except Exception as error:
                self._record_failure(sink, error)

    @property
    def dropped(self) -> int:
        """The number of accepted events that could not be stored, in all sinks."""
        return self._failed + sum(sink.dropped for sink in self.sinks)

    async def flush(self) -> None:
        for sink in self.sinks:
            try:
                await sink.flush()
            except Exception as error:
                self._log_failure(sink, error)

    async def close(self) -> None:
        for sink in self.sinks:
            closing = ability(sink, Closes)
            try:
                await (sink.flush() if closing is None else closing.close())
            except Exception as error:
                self._log_failure(sink, error)

    def _record_failure(self, sink: RecordsAtOnce, error: Exception) -> None:
        """Handle an exception of a sink.

        In blocking mode it fails the request; otherwise the event counts as dropped.
        """
        if isinstance(error, AuditUnavailable) and self._may_refuse:
            raise error
        if not self.blocking:
            self._failed += 1
            self._log_failure(sink, error)
            return
        # The type only: the text of a third-party exception may contain a password.
        cause = f"{type(sink).__name__} has failed: {type(error).__name__}"
        raise AuditUnavailable("an audit event cannot be stored", cause=cause) from None

    def _log_failure(self, sink: RecordsAtOnce, error: Exception) -> None:
        """Log each kind of failure of a sink once: a sink that fails with every event would flood the log."""
        failure = (id(sink), type(error))
        if failure not in self._failures_told:
            self._failures_told.add(failure)
            extra = {"sink": type(sink).__name__, "cause": type(error).__name__}
            log.error("an audit provider fails: its events are dropped", extra=extra)


class Prepared:
    """What is known of a request before it is forwarded, shared by requests with the same user and request line.

    `PreparedForObjects` derives variants for requests that differ in the name of the object. Call `record_received`,
    then `record_started` if the response may take long, then `complete` or `record_panic`. Each records an event only
    if the policy wants that stage.
    """

    __slots__ = (
        "_about",
        "_auditor",
        "_complete",
        "_frame",
        "_head",
        "_scope",
        "_started",
        "_tail",
        "wants_received",
        "wants_request_body",
        "wants_response_body",
    )

    def __init__(
        self, auditor: Auditor, scope: AuditScope, frame: wire.Frame, *, long_running: bool, bodies: bool
    ) -> None:
        self._auditor, self._scope, self._frame, self._about = auditor, scope, frame, frame.about
        self._head, self._tail = frame.head, frame.tail
        self._complete = wire.middle(Stage.COMPLETE, frame.about) if Stage.COMPLETE not in scope.omit_stages else ""
        self._started = long_running and Stage.STARTED not in scope.omit_stages
        # A request that cannot be recorded must not be served, so in blocking mode its first event is stored before it
        # is forwarded.
        self.wants_received = auditor.blocking or Stage.RECEIVED not in scope.omit_stages
        # The body of a stream has no end, so it is not recorded.
        bodies = bodies and not long_running
        self.wants_request_body = bodies and scope.level >= AuditLevel.REQUEST
        self.wants_response_body = bodies and scope.level >= AuditLevel.REQUEST_RESPONSE

    def record_received(self, audit_id: str, origin: str, received_at: float) -> None:
        if self.wants_received:
            self._emit(Stage.RECEIVED, audit_id, origin, "", received_at, received_at, self._tail)

    def record_started(self, audit_id: str, origin: str, status: int, *, received_at: float, at: float) -> None:
        """Record that the head of a long-running response has been sent."""
        if self._started:
            self._emit(Stage.STARTED, audit_id, origin, self._auditor.outcome(status), received_at, at, self._tail)

    def complete(
        self, audit_id: str, origin: str, status: int, *, received_at: float, at: float, middle: str = ""
    ) -> None:
        """Record the end of a response. This is the fast path; `complete_with` is for all other events.

        *middle* comes from `PreparedForObjects.middle`, for a request that differs in the object only.
        """
        if self._complete:
            auditor = self._auditor
            received, now = auditor.timestamps.both(received_at, at)
            outcome = auditor.outcomes.get(status) or auditor.outcome(status)
            middle = middle or self._complete
            auditor.accept(wire.line(self._head, audit_id, middle, origin, outcome, received, now, self._tail))

    def complete_with(
        self,
        audit_id: str,
        origin: str,
        status: int,
        *,
        received_at: float,
        at: float,
        reason: str = "",
        message: str = "",
        annotations: Mapping[str, str] | None = None,
        request_body: bytes | None = None,
        response_body: bytes | None = None,
    ) -> None:
        """Like `complete`, with what only some events have: the reason of an error, annotations, bodies."""
        if not self._complete:
            return
        notes = {**self._frame.annotations, **(annotations or {})}
        bodies = ""
        if self.wants_request_body and request_body:
            bodies += self._body("requestObject", request_body, notes, audit_policy.REQUEST_OBJECT_OMITTED)
        if self.wants_response_body and response_body:
            bodies += self._body("responseObject", response_body, notes, audit_policy.RESPONSE_OBJECT_OMITTED)
        outcome = wire.outcome(status, reason=reason, message=message) + bodies
        self._emit(Stage.COMPLETE, audit_id, origin, outcome, received_at, at, wire.tail(notes))

    def record_panic(self, audit_id: str, origin: str, *, received_at: float, at: float) -> None:
        """Record that the gateway itself failed: the end of the response is unknown."""
        if Stage.PANIC not in self._scope.omit_stages:
            outcome = wire.outcome(500, reason="InternalError", message="the gateway failed while sending the response")
            self._emit(Stage.PANIC, audit_id, origin, outcome, received_at, at, self._tail)

    def _emit(
        self, stage: Stage, audit_id: str, origin: str, outcome: str, received_at: float, at: float, tail: str
    ) -> None:
        received, now = self._auditor.timestamps.both(received_at, at)
        middle = wire.middle(stage, self._about)
        self._auditor.accept(wire.line(self._head, audit_id, middle, origin, outcome, received, now, tail))

    def _body(self, field: str, body: bytes, notes: dict[str, str], omitted: str) -> str:
        largest = self._auditor.largest_body
        if len(body) > largest:
            notes[omitted] = f"it is larger than {largest} bytes"
            return ""
        text = wire.body_object(body, without_managed_fields=self._scope.omit_managed_fields)
        if text is None:
            notes[omitted] = "it is not a JSON object"
            return ""
        return f',"{field}":{text}'

    def for_objects(self, request_uri: str, name: str) -> PreparedForObjects | None:
        """Return a template for requests that differ in the object *name* only.

        Returns None if the name cannot be replaced.
        """
        gaps = wire.about_objects(self._about, request_uri, name)
        return None if gaps is None else PreparedForObjects(self, gaps)

    def with_about(self, about: str) -> Prepared:
        """Return a copy for a request on another object, with *about* as its JSON."""
        other = Prepared.__new__(Prepared)
        other._auditor, other._scope, other._frame, other._about = self._auditor, self._scope, self._frame, about
        other._head, other._tail = self._head, self._tail
        other._complete = _COMPLETE + about if self._complete else ""
        other._started = self._started
        other.wants_received, other.wants_request_body = self.wants_received, self.wants_request_body
        other.wants_response_body = self.wants_response_body
        return other


_COMPLETE = wire.middle(Stage.COMPLETE, "")


class PreparedForObjects:
    """A prepared request with a placeholder for the object's name."""

    __slots__ = ("_gaps", "_prepared")

    def __init__(self, prepared: Prepared, gaps: wire.AboutObjects) -> None:
        self._prepared, self._gaps = prepared, gaps

    def of(self, request_uri: str, name: str) -> Prepared:
        return self._prepared.with_about(self._gaps.about(request_uri, name))

    def middle(self, request_uri: str, name: str) -> str:
        """Return the middle of the last event, with the name filled in."""
        return _COMPLETE + self._gaps.about(request_uri, name)


def _annotations(request: RequestInfo, decision: Decision | None, upstream: str, step_up: str) -> dict[str, str]:
    where = {audit_policy.UPSTREAM: upstream} if upstream else {}
    if step_up:
        where[audit_policy.STEP_UP] = step_up
    if request.capabilities:
        where[audit_policy.CAPABILITIES] = ",".join(request.capabilities)
    if decision is None:
        return where
    return {
        audit_policy.DECISION: "allow" if decision.allowed else "forbid",
        audit_policy.REASON: decision.reason,
        **where,
    }
