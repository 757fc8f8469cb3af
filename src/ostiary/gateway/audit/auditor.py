"""Records who asked for what, and how it ended: one event per stage of a request, by the audit policy.

    authorize  ->  prepare (once per user and request line)  ->  received  ->  ...  ->  complete  ->  sinks

Called by the proxy for every request, also for one that was refused. What can be known beforehand is made JSON by
`prepare`, and the proxy keeps the result beside the decision; at the end of a request a few strings are joined and
handed to the sinks. Nothing here waits, except for the disk in blocking mode.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address

from ostiary.core.caching.bounded import Bounded
from ostiary.core.clock import SYSTEM_CLOCK, Clock
from ostiary.core.implied_groups import with_implied_groups
from ostiary.gateway.audit.sinks import Sink
from ostiary.model import Decision, RequestInfo, UserInfo
from ostiary.wire import audit as wire
from ostiary.wire.audit import Level, Policy, Scope, Stage

LARGEST_BODY = 256 * 1024
LONGEST_FORWARDED = 32
_ORIGINS_KEPT = 4096
_LONGEST_KEPT_AGENT = 256

Network = IPv4Network | IPv6Network


class Auditor:
    """Makes events and hands them to every sink, in order.

    Times are given as the clock's monotonic seconds, which the proxy has at hand anyway; the time of day is read
    once a second. With *blocking* sinks `received` and `complete` raise `AuditUnavailable` when an event cannot be
    stored: the request is then refused with a 500. The first stage is recorded then, whatever the policy omits.
    """

    def __init__(
        self,
        policy: Policy,
        sinks: Sequence[Sink],
        *,
        clock: Clock = SYSTEM_CLOCK,
        largest_body: int = LARGEST_BODY,
        blocking: bool = False,
        tells_upstream: bool = False,
    ) -> None:
        self.policy = policy
        # Where there is but one, every event would say the same.
        self._tells_upstream = tells_upstream
        self.blocking = blocking
        self.sinks = tuple(sinks)
        self.largest_body = largest_body
        self.events = 0
        self.stamps = _Stamps(clock)
        self._origins: Bounded[tuple[tuple[str, ...], str], str] = Bounded(_ORIGINS_KEPT)

    def audit_id(self) -> str:
        """The id of a request. Never one that the client brings along: with another's it could hide behind them."""
        if not _ids:
            _refill_ids()
        return _ids.pop()

    def origin(self, source_ips: Sequence[str], user_agent: str = "") -> str:
        """Where a request comes from, ready for its events. Few programs make many requests: the text is kept."""
        key = (tuple(source_ips), user_agent[: wire.LONGEST_USER_AGENT + 1])
        found = self._origins.get(key)
        if found is None:
            found = wire.origin(*key)
            if len(user_agent) <= _LONGEST_KEPT_AGENT:
                self._origins.keep(key, found)
        return found

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
    ) -> Prepared | None:
        """What the events of such requests share; None if the policy wants none of them.

        *user* is None when nobody could be identified. The user decides which rule applies, and not the one that is
        impersonated: whom somebody acts for is a part of what they did.
        """
        user = None if user is None else with_implied_groups(user)
        impersonated = None if impersonated is None else with_implied_groups(impersonated)
        scope = self.policy.scope(request, user)
        if scope.level is Level.NONE:
            return None
        frame = wire.frame(
            scope.level,
            request,
            user,
            request_uri=request_uri,
            impersonated=impersonated,
            impersonation_constraint=impersonation_constraint,
            annotations=_annotations(decision, request.upstream if self._tells_upstream else ""),
        )
        bodies = not wire.carries_credentials(request)
        return Prepared(self, scope, frame, long_running=long_running, bodies=bodies)

    def accept(self, line: str) -> None:
        self.events += 1
        for sink in self.sinks:
            sink.accept(line)

    @property
    def dropped(self) -> int:
        """How many events were accepted and could not be stored, in all sinks."""
        return sum(sink.dropped for sink in self.sinks)

    async def flush(self) -> None:
        for sink in self.sinks:
            await sink.flush()

    async def close(self) -> None:
        for sink in self.sinks:
            await sink.close()


class Prepared:
    """All that is known of a request before it is sent on. Shared by all requests that are equal in that.

    Call `received`, then `started` if the answer may take long, then `complete` or `panicked`; each makes an event
    only if the policy wants that stage.
    """

    __slots__ = (
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

    def __init__(self, auditor: Auditor, scope: Scope, frame: wire.Frame, *, long_running: bool, bodies: bool) -> None:
        self._auditor, self._scope, self._frame = auditor, scope, frame
        self._head, self._tail = frame.head, frame.tail
        self._complete = frame.middles[Stage.COMPLETE] if Stage.COMPLETE not in scope.omit_stages else ""
        self._started = long_running and Stage.STARTED not in scope.omit_stages
        # What cannot be recorded must not be done, and that is known only if something is recorded before.
        self.wants_received = auditor.blocking or Stage.RECEIVED not in scope.omit_stages
        # A stream has no body that ends, and nobody waits to read it.
        bodies = bodies and not long_running
        self.wants_request_body = bodies and scope.level >= Level.REQUEST
        self.wants_response_body = bodies and scope.level >= Level.REQUEST_RESPONSE

    def received(self, audit_id: str, origin: str, received_at: float) -> None:
        if self.wants_received:
            self._emit(Stage.RECEIVED, audit_id, origin, "", received_at, received_at, self._tail)

    def started(self, audit_id: str, origin: str, status: int, *, received_at: float, at: float) -> None:
        """The head of a long answer has been sent."""
        if self._started:
            self._emit(Stage.STARTED, audit_id, origin, _outcome(status), received_at, at, self._tail)

    def complete(self, audit_id: str, origin: str, status: int, *, received_at: float, at: float) -> None:
        """The answer is over. The way of nearly all requests; the others need `complete_with`."""
        if self._complete:
            auditor = self._auditor
            received, now = auditor.stamps.both(received_at, at)
            outcome = _OUTCOMES.get(status) or _outcome(status)
            auditor.accept(wire.line(self._head, audit_id, self._complete, origin, outcome, received, now, self._tail))

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
        """As `complete`, with what only some events have: why it was refused, annotations, bodies."""
        if not self._complete:
            return
        notes = {**self._frame.annotations, **(annotations or {})}
        bodies = ""
        if self.wants_request_body and request_body:
            bodies += self._body("requestObject", request_body, notes, wire.REQUEST_OBJECT_OMITTED)
        if self.wants_response_body and response_body:
            bodies += self._body("responseObject", response_body, notes, wire.RESPONSE_OBJECT_OMITTED)
        outcome = wire.outcome(status, reason=reason, message=message) + bodies
        self._emit(Stage.COMPLETE, audit_id, origin, outcome, received_at, at, wire.tail(notes))

    def panicked(self, audit_id: str, origin: str, *, received_at: float, at: float) -> None:
        """We failed, and not the caller: nothing else is known of the request's end."""
        if Stage.PANIC not in self._scope.omit_stages:
            outcome = wire.outcome(500, reason="InternalError", message="the gateway failed while sending the response")
            self._emit(Stage.PANIC, audit_id, origin, outcome, received_at, at, self._tail)

    def _emit(
        self, stage: Stage, audit_id: str, origin: str, outcome: str, received_at: float, at: float, tail: str
    ) -> None:
        received, now = self._auditor.stamps.both(received_at, at)
        middle = self._frame.middles[stage]
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


def _annotations(decision: Decision | None, upstream: str) -> dict[str, str]:
    where = {wire.UPSTREAM: upstream} if upstream else {}
    if decision is None:
        return where
    return {wire.DECISION: "allow" if decision.allowed else "forbid", wire.REASON: decision.reason, **where}


_OUTCOMES: dict[int, str] = {}


def _outcome(status: int) -> str:
    text = wire.outcome(status)
    # An upstream can send no more different codes than there are three-digit numbers.
    if 0 <= status < 1000:
        _OUTCOMES[status] = text
    return text


# --- time, cheaply ---


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


_MILLISECONDS = tuple(f"{number:03d}" for number in range(1000))
_MICROSECONDS = tuple(f"{number:03d}Z" for number in range(1000))


class _Stamps:
    """Monotonic seconds as the time of day, to the microsecond.

    Reading the time of day and spelling out a date would cost more than the rest of an event. So the two clocks are
    compared once a second (a clock that was put right is followed), and only the fraction is spelled each time.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._prefix = ""
        # What to add to monotonic microseconds to get those since the second that `_prefix` spells.
        self._offset = float("-inf")
        self._difference = 0
        self._good_until = float("-inf")

    def both(self, first: float, second: float) -> tuple[str, str]:
        """The stamps of two moments, which mostly lie in the same second."""
        if second < self._good_until:
            offset, prefix = self._offset, self._prefix
            one, other = int(first * 1e6 + offset), int(second * 1e6 + offset)
            if 0 <= one <= other < 1_000_000:
                return (
                    f"{prefix}{_MILLISECONDS[one // 1000]}{_MICROSECONDS[one % 1000]}",
                    f"{prefix}{_MILLISECONDS[other // 1000]}{_MICROSECONDS[other % 1000]}",
                )
        return self.stamp(first), self.stamp(second)

    def stamp(self, at: float) -> str:
        if at >= self._good_until:
            self._compare()
        microsecond = int(at * 1e6 + self._offset)
        if not 0 <= microsecond < 1_000_000:
            microsecond = self._spell(at)
        return f"{self._prefix}{_MILLISECONDS[microsecond // 1000]}{_MICROSECONDS[microsecond % 1000]}"

    def _compare(self) -> None:
        now = self._clock.monotonic()
        # Whole microseconds: as floats, today's seconds since 1970 are no longer exact to one.
        self._difference = (self._clock.now() - _EPOCH) // _MICROSECOND - int(now * 1e6 + 0.5)
        self._good_until = now + 1.0
        self._spell(now)

    def _spell(self, at: float) -> int:
        second, microsecond = divmod(self._difference + int(at * 1e6 + 0.5), 1_000_000)
        self._prefix = datetime.fromtimestamp(second, UTC).strftime("%Y-%m-%dT%H:%M:%S.")
        self._offset = float(self._difference - second * 1_000_000) + 0.5
        return microsecond


# --- ids ---

_ids: list[str] = []
_IDS_AT_ONCE = 256
_TABLES_LAST = 256
_beginnings: list[str] = []
_endings: list[str] = []


def _refill_ids() -> None:
    """Random UUIDs, 256 at once. Two of them differ at both ends, where people look; spelling out all of each would
    cost twenty times as much, so the middle is shared, and the ends are paired anew each time."""
    global _tables_left
    if not _tables_left:
        _beginnings[:] = (os.urandom(4).hex() for _ in range(_IDS_AT_ONCE))
        _endings[:] = (os.urandom(6).hex() for _ in range(_IDS_AT_ONCE))
        _tables_left = _TABLES_LAST
    _tables_left -= 1
    shift, *digits = os.urandom(6)
    text = bytes(digits).hex()
    middle = f"-{text[:4]}-4{text[4:7]}-{'89ab'[shift & 3]}{text[7:]}-"
    paired = zip(_beginnings, _endings[shift:] + _endings[:shift], strict=True)
    _ids.extend([beginning + middle + ending for beginning, ending in paired])


_tables_left = 0


def _forget_ids() -> None:
    global _tables_left
    _ids.clear()
    _tables_left = 0


if hasattr(os, "register_at_fork"):
    # Two workers must not hand out the ids that their parent had made.
    os.register_at_fork(after_in_child=_forget_ids)


# --- addresses ---


def source_ips(
    remote: str, *, forwarded_for: Sequence[str] = (), real_ip: str = "", trusted: Sequence[Network] = ()
) -> tuple[str, ...]:
    """Where a request came from, the client first, then each proxy, then whoever is connected to us.

    *forwarded_for* is every ``X-Forwarded-For`` line. A hop is believed only as far as a trusted proxy vouches for
    it, so a client cannot put another's address into the record.
    """
    hops = [remote]
    if not _is_trusted(remote, trusted):
        return (remote,)
    claimed = [part.strip() for line in forwarded_for for part in line.split(",")][-LONGEST_FORWARDED:]
    for hop in reversed(claimed or [real_ip.strip()]):
        address = _address(hop)
        if address is None:
            break
        hops.append(str(address))
        if not _is_trusted(str(address), trusted):
            break
    hops.reverse()
    return tuple(hop for index, hop in enumerate(hops) if index == 0 or hop != hops[index - 1])


def _is_trusted(text: str, trusted: Sequence[Network]) -> bool:
    address = _address(text) if trusted else None
    return address is not None and any(address in network for network in trusted)


def _address(text: str) -> IPv4Address | IPv6Address | None:
    """The address in ``192.0.2.1``, ``192.0.2.1:8080``, ``2001:db8::1`` or ``[2001:db8::1]:8080``."""
    if text.startswith("["):
        text = text[1:].partition("]")[0]
    elif text.count(":") == 1:
        text = text.partition(":")[0]
    try:
        address = ip_address(text)
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return mapped or address
