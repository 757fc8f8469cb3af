"""Goes through the checks: proves that the echo is behind the proxy, sends each probe, and asks the judges.

Nothing hostile is sent before the echo has seen a plain request of this run come through the proxy: whoever does not
stand behind a proxy cannot examine it. Every request has a connection of its own, and their number is bounded. A check
passes only if a plain request still arrives afterwards: who is shut out altogether proves nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace

from ostiary.cli.doctor.judges import arrived_claims, shown
from ostiary.cli.doctor.probe import Check, Finding, Ground, Group, Need, Probe, request_bytes, request_frames_of
from ostiary.cli.doctor.probes import all_checks, http2
from ostiary.cli.doctor.traffic.echo import Echo
from ostiary.cli.doctor.traffic.front import Front
from ostiary.cli.doctor.traffic.observed import Answer, Observation
from ostiary.core.conformance import Result
from ostiary.errors import ProviderError

MOST_REQUESTS = 600
LONGEST_PAUSE = 10
PATIENCE = 3
# So many plain requests must arrive: a proxy with another backend beside the echo would send the rest there.
PROOFS = 8
TOO_MANY = 429
PLAIN = Probe(label="a plain request")
# What no proxy takes for a request; the answer is its own, and tells which one it is.
NO_REQUEST = Probe(label="no request", target=b"/", lines=(b"this is no header",))

_NOT_ARRIVED = {
    200: "something else answers there: point the proxy at the echo, or let the echo take the application's port",
    401: "the gateway does not accept this token",
    403: "this user may not use this path: name one that they may use with --path",
    404: "there is nothing at this path, or this user may not see it: name another one with --path",
    421: "the proxy does not know this host: name it with --host",
}
_NO_BACKEND = "point the proxy's backend at the address of the echo, and check that it can reach it"


class Exhausted(Exception):
    """The bound on requests is reached."""


@dataclass
class Examination:
    """One run. *gateway* is the way to the gateway itself, if it is known; *tell* is called as it goes on."""

    front: Front
    echo: Echo
    run: str
    ground: Ground
    gateway: Front | None = None
    tell: Callable[[str], None] = lambda text: None
    stop_gateway: Callable[[], None] | None = None
    groups: tuple[Group, ...] = tuple(Group)
    _number: int = 0
    _unmet: dict[Need, str] = field(default_factory=dict)

    def prove(self) -> Answer:
        """The answer to a plain request, once it has arrived at the echo. Raises `ProviderError` if it has not."""
        self.tell("does a plain request reach the echo?")
        for number in range(PROOFS):
            observation = self._observe(PLAIN)
            if not observation.has_arrived:
                raise self._not_reached(observation.answer.status, is_first=not number)
        return observation.answer

    def _not_reached(self, status: int, *, is_first: bool) -> ProviderError:
        answered = f"the proxy answered {status}" if status else "the proxy did not answer"
        if is_first:
            cause = f"a plain request for {self.ground.path.decode()} did not reach it; {answered}"
            hint = _NOT_ARRIVED.get(status, _NO_BACKEND)
        else:
            cause = f"one plain request reached it and another did not; {answered}"
            hint = "the proxy has more than one backend here: leave only the echo, or hostile requests reach the others"
        return ProviderError(
            "the echo is not behind this proxy, so nothing was examined",
            cause=cause,
            where=f"{self.front.address.url}, --echo port {self.echo.port}",
            hint=hint,
            code="echo-not-reached",
        )

    def answer_to_nonsense(self) -> Answer:
        return self._observe(NO_REQUEST).answer

    def findings(self) -> Iterator[Finding]:
        """A finding for each check, in the order of the report. `prove` comes before it."""
        self._look_around()
        checks = all_checks(self.ground)
        for group in self.groups:
            self.tell(f"{group.value} ...")
            yield from self._group([check for check in checks if check.group is group])

    # --- what can be tested here ---

    def _look_around(self) -> None:
        ground = self.ground
        if ground.token is None:
            self._unmet[Need.TOKEN] = Need.TOKEN.value
        if self.gateway is None:
            self._unmet[Need.GATEWAY] = Need.GATEWAY.value
        if not ground.door:
            self._unmet[Need.DOOR] = Need.DOOR.value
        if self.stop_gateway is None:
            self._unmet[Need.DOWN] = Need.DOWN.value
        if not self._observe(http2.PLAIN).has_arrived:
            self._unmet[Need.HTTP2] = Need.HTTP2.value
        self._look_for_body()
        self._look_at_denied()

    def _look_for_body(self) -> None:
        for method in (b"POST", b"PUT", b"GET"):
            probe = Probe(label="a body", method=method, lines=(b"Content-Length: 6",), body=b"doctor")
            if self._observe(probe).has_arrived:
                self.ground = replace(self.ground, body_method=method)
                return
        self._unmet[Need.BODY] = Need.BODY.value

    def _look_at_denied(self) -> None:
        ground = self.ground
        if not ground.denied and not ground.denied_method:
            self._unmet[Need.NAMED_DENIED] = Need.NAMED_DENIED.value
        if not ground.denied:
            self._unmet[Need.DENIED] = Need.DENIED.value
        elif self._arrives(b"GET", ground.denied):
            self._unmet[Need.DENIED] = f"{ground.denied.decode()} arrives as it is"
        if not ground.denied_method:
            self._unmet[Need.DENIED_METHOD] = Need.DENIED_METHOD.value
        elif self._arrives(ground.denied_method, ground.denied_method_path):
            self._unmet[Need.DENIED_METHOD] = (
                f"{ground.denied_method.decode()} {ground.denied_method_path.decode()} arrives as it is"
            )
        elif not self._arrives(b"GET", ground.denied_method_path):
            self._unmet[Need.DENIED_METHOD] = f"GET {ground.denied_method_path.decode()} does not arrive either"

    def _arrives(self, method: bytes, path: bytes) -> bool:
        lines = () if method == b"GET" else (b"Content-Length: 0",)
        target = path + (b"&" if b"?" in path else b"?") + b"doctor=@MARK@"
        return self._observe(Probe(label="", method=method, target=target, lines=lines)).has_arrived

    # --- one group, one check, one probe ---

    def _group(self, checks: list[Check]) -> Iterator[Finding]:
        findings = [self._check(check) for check in checks]
        is_tested = any(finding.result is not Result.SKIPPED for finding in findings)
        if is_tested and checks[0].group is not Group.OUTAGE and not self._plain_arrives():
            findings = [_in_doubt(finding) for finding in findings]
        yield from findings

    def _plain_arrives(self) -> bool:
        try:
            return self._observe(PLAIN).has_arrived
        except Exhausted:
            return False

    def _check(self, check: Check) -> Finding:
        missing = [self._unmet[need] for need in check.needs if need in self._unmet]
        if missing:
            return _finding(check, Result.SKIPPED, missing[0])
        if check.unless:
            return _finding(check, Result.SKIPPED, check.unless)
        if check.group is Group.OUTAGE:
            return self._check_outage(check)
        try:
            return _judged(check, self.ground, self._observations(check))
        except Exhausted:
            return _finding(check, Result.SKIPPED, f"{MOST_REQUESTS} requests were sent, and no more are")

    def _check_outage(self, check: Check) -> Finding:
        assert self.stop_gateway is not None
        self.stop_gateway()
        observations = list(self._observations(check))
        finding = _judged(check, self.ground, observations)
        if finding.result is Result.PASS and any(each.answer.status == 401 for _, each in observations):
            return _finding(check, Result.SKIPPED, "the proxy answers 401, so the gateway is not down")
        return finding

    def _observations(self, check: Check) -> Iterator[tuple[Probe, Observation]]:
        for probe in check.probes:
            observation = self._observe(probe, at_gateway=check.at_gateway)
            if probe.parts and not observation.has_arrived:
                yield from ((part, self._observe(part)) for part in probe.parts)
            else:
                yield probe, observation

    def _observe(self, probe: Probe, *, at_gateway: bool = False) -> Observation:
        front = self.gateway if at_gateway and self.gateway is not None else self.front
        for _ in range(PATIENCE):
            if self._number >= MOST_REQUESTS:
                raise Exhausted
            self._number += 1
            answer = self._send(front, probe, f"{self.run}-{self._number:04}")
            observation = Observation(answer, self.echo.arrivals(self._number))
            if answer.status != TOO_MANY or observation.has_arrived:
                break
            self._pause(answer)
        return observation

    def _send(self, front: Front, probe: Probe, mark: str) -> Answer:
        if probe.http2 is not None:
            return front.send_http2(request_frames_of(probe, self.ground, mark))
        return front.send(request_bytes(probe, self.ground, mark))

    def _pause(self, answer: Answer) -> None:
        after = answer.header(b"retry-after")
        seconds = int(after) if after.isdigit() and len(after) < 4 else 1
        self.tell(f"the gateway answers 429, waiting for {min(seconds, LONGEST_PAUSE)} s ...")
        time.sleep(min(seconds, LONGEST_PAUSE))


def _judged(check: Check, ground: Ground, observations: Iterable[tuple[Probe, Observation]]) -> Finding:
    """What the judge of *check* says of all that was seen."""
    wrongs, names, is_in_doubt = [], set[bytes](), False
    for probe, observation in observations:
        wrong = check.judge(ground, probe, observation)
        if wrong:
            wrongs.append(wrong)
            names |= arrived_claims(ground, probe, observation)
        is_in_doubt |= observation.answer.status == TOO_MANY and not observation.has_arrived
    if wrongs:
        finding = _finding(check, check.severity, "\n".join(dict.fromkeys(wrongs)))
        return replace(finding, names=tuple(sorted(shown(name).lower() for name in names)))
    if is_in_doubt:
        return _finding(check, Result.SKIPPED, "a limit of the gateway answered 429: run it again later")
    return _finding(check, Result.PASS)


def _finding(check: Check, result: Result, seen: str = "") -> Finding:
    return Finding(check.name, check.group, check.asks, result, seen)


def _in_doubt(finding: Finding) -> Finding:
    """What passed although nothing passes any more was not tested."""
    if finding.result is not Result.PASS:
        return finding
    return replace(
        finding, result=Result.SKIPPED, seen="afterwards a plain request did not arrive either: has the token expired?"
    )
