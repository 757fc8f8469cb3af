"""Bodies for the audit log: those that the policy wants, one byte beyond the limit at most."""

from __future__ import annotations

from ostiary_gateway.proxy.recorder import Recorder


def test_only_the_bodies_that_are_wanted_are_kept() -> None:
    recorder = Recorder(10, request=True, response=False)
    recorder.request(b"asked")
    recorder.response(b"answered")
    assert (recorder.request_body, recorder.response_body) == (b"asked", None)
    recorder = Recorder(10, request=False, response=True)
    recorder.request(b"asked")
    assert (recorder.request_body, recorder.response_body) == (None, b"")


def test_one_byte_beyond_the_limit_shows_that_there_was_more() -> None:
    recorder = Recorder(4, request=True, response=True)
    for part in (b"ab", b"cdefgh", b"ij"):
        recorder.request(part)
    recorder.response(b"1234")
    assert (recorder.request_body, recorder.response_body) == (b"abcde", b"1234")
