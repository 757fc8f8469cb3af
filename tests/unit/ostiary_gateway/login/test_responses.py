"""How /auth answers: each outcome has its status and its headers, and no answer shows a token in its repr."""

from __future__ import annotations

import json

import pytest

from ostiary.errors import LoginRefused
from ostiary_gateway.login import responses as answers


@pytest.mark.parametrize(
    ("refused", "status", "header"),
    [
        (LoginRefused("no"), 403, None),
        (LoginRefused("no", www_authenticate="Basic"), 401, ("WWW-Authenticate", "Basic")),
        (LoginRefused("no", retry_after=0.2), 429, ("Retry-After", "1")),
        (LoginRefused("no", retry_after=61.5), 429, ("Retry-After", "62")),
    ],
)
def test_a_refusal_has_the_status_that_fits_it(
    refused: LoginRefused, status: int, header: tuple[str, str] | None
) -> None:
    answer = answers.refusal(refused)
    assert (answer.status, answer.message) == (status, "no")
    assert header is None or header in answer.headers


def test_a_refusal_says_nothing_of_its_cause() -> None:
    answer = answers.refusal(LoginRefused("no", cause="the operator's business"))
    assert b"operator" not in answer.body
    assert json.loads(answer.body)["message"] == "no"


def test_a_renewal_that_another_program_has_just_done_is_tried_again() -> None:
    again = answers.not_renewed(LoginRefused("in a moment", retry_after=5.0))
    assert (again.status, again.header("retry-after")) == (409, "1")
    over = answers.not_renewed(LoginRefused("over"))
    assert over.status == 401
    assert 'error="invalid_token"' in (over.header("WWW-Authenticate") or "")


def test_an_error_of_the_protocol_says_whether_it_is_routine() -> None:
    assert answers.grant_refusal("authorization_pending", routine=True).routine
    refusal = answers.grant_refusal("invalid_grant")
    assert (refusal.status, json.loads(refusal.body), refusal.routine) == (400, {"error": "invalid_grant"}, False)


@pytest.mark.parametrize(
    "answer",
    [
        answers.error(404, "page not found"),
        answers.redirect("/auth"),
        answers.json_answer(200, {}),
        answers.no_content(),
        answers.download("text", "name"),
    ],
    ids=["error", "redirect", "json", "empty", "download"],
)
def test_no_answer_may_be_stored_or_framed(answer: answers.LoginAnswer) -> None:
    assert answer.header("Cache-Control") == "no-store"
    assert answer.header("X-Frame-Options") == "DENY"
    assert "default-src 'none'" in (answer.header("Content-Security-Policy") or "")


def test_neither_headers_nor_body_are_in_the_repr() -> None:
    answer = answers.json_answer(200, {"token": "marked"}).with_headers(("Set-Cookie", "marked"))
    assert "marked" not in repr(answer)
