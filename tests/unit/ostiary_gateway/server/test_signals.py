"""The first signal asks a process to stop, and the second to hurry."""

from __future__ import annotations

from ostiary_gateway.server.signals import StopRequest


async def test_the_first_signal_stops_and_the_second_hurries() -> None:
    stop = StopRequest()
    assert (stop.asked.is_set(), stop.hurry.is_set()) == (False, False)
    stop()
    assert (stop.asked.is_set(), stop.hurry.is_set()) == (True, False)
    stop()
    assert (stop.asked.is_set(), stop.hurry.is_set()) == (True, True)
