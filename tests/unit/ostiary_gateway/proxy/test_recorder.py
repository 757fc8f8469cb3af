"""Bodies for the audit log: those that the policy wants, one byte beyond the limit at most."""

from __future__ import annotations

from ostiary_gateway.proxy.recorder import LARGEST_ANSWER, AnswerRecorder, Recorder


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


def test_an_answer_that_is_too_large_is_not_kept_and_its_beginning_is_still_recorded() -> None:
    audit = Recorder(4, request=True, response=True)
    recorder = AnswerRecorder(audit)
    recorder.request(b"asked")
    answers = []
    for part in (b"x" * LARGEST_ANSWER, b"y"):
        recorder.response(part)
        answers.append(recorder.whole_answer)
    assert answers == [b"x" * LARGEST_ANSWER, None]
    assert (audit.request_body, audit.response_body) == (b"asked", b"xxxxx")


def test_an_answer_is_kept_where_no_bodies_are_recorded() -> None:
    recorder = AnswerRecorder(None)
    recorder.request(b"asked")
    recorder.response(b"ans")
    recorder.response(b"wered")
    assert (recorder.request_body, recorder.whole_answer) == (None, b"answered")
