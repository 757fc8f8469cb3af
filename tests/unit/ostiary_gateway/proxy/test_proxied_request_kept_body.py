"""What is kept of a body to send it again, and up to where."""

from __future__ import annotations

from ostiary_gateway.proxy.proxied_request import REPLAYABLE_BYTES, ReplayBuffer


def test_a_small_body_is_kept_in_order() -> None:
    body = ReplayBuffer()
    body.add(b"a" * (REPLAYABLE_BYTES - 1), connected=True)
    body.add(b"b", connected=True)
    assert (body.is_complete, b"".join(body.parts)) == (True, b"a" * (REPLAYABLE_BYTES - 1) + b"b")


def test_a_body_that_is_being_sent_is_dropped_beyond_the_limit_for_good() -> None:
    body = ReplayBuffer()
    body.add(b"a" * REPLAYABLE_BYTES, connected=True)
    body.add(b"b", connected=True)
    body.add(b"c", connected=False)
    assert (body.is_complete, body.parts) == (False, [])


def test_while_there_is_no_connection_nothing_is_dropped() -> None:
    body = ReplayBuffer()
    for _ in range(3):
        body.add(b"a" * REPLAYABLE_BYTES, connected=False)
    assert body.is_complete
    assert len(b"".join(body.parts)) == 3 * REPLAYABLE_BYTES
