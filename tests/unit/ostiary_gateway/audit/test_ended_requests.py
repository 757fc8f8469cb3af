"""How requests ended is remembered, and strangers cannot fill the memory with it."""

from __future__ import annotations

from ostiary_gateway.audit.ended_requests import LONGEST_TEXT, EndedRequest, EndedRequests
from ostiary_gateway.replicas.worker_messages import ended_from_json, ended_json
from ostiary_gateway.testing import FakeClock


def test_long_texts_are_cut() -> None:
    clock = FakeClock()
    ended = EndedRequests(clock=clock)
    ended.record(EndedRequest("id", clock.now(), 401, "why", "GET", "/x" * 30_000, "192.0.2.1", "u" * 60_000))
    request = ended.recall("ID ")
    assert request is not None
    assert (len(request.path), len(request.username), request.reason) == (LONGEST_TEXT, LONGEST_TEXT, "why")


def test_one_goes_from_worker_to_worker_as_it_is() -> None:
    request = EndedRequest("id", FakeClock().now(), 401, "why", "GET", "/x", "192.0.2.1", "ann", "refused", "staff")
    assert ended_from_json(ended_json(request)) == request
