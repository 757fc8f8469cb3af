"""The listener that the browser comes back to: whom it believes, and what it shows."""

from __future__ import annotations

import http.client
import socket
from collections.abc import Iterator
from datetime import UTC, datetime
from urllib.parse import urlencode

import pytest

from ostiary.cli.login.browser import STEP_UP, Return
from ostiary.cli.login.sessions import SignInGrant
from ostiary.errors import CredentialError, LoginRefused
from ostiary.model import Secret

END = datetime(2030, 1, 1, tzinfo=UTC)
GRANT = SignInGrant(Secret("token"), END, Secret("renewal"), "s1", END, "ann")


class Listener:
    language = "en"

    def __init__(self) -> None:
        self.codes: list[str] = []
        self.failure: Exception | None = None
        self.returning = Return(self.redeem, "https://gateway.test")

    def redeem(self, code: str) -> SignInGrant:
        self.codes.append(code)
        if self.failure is not None:
            raise self.failure
        return GRANT

    def visit(self, path: str = "/callback", host: str | None = None, **query: str) -> tuple[int, str]:
        """The status, and the page or where it leads to."""
        port = self.returning.port
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        connection.request(
            "GET",
            f"{path}?{urlencode(query)}",
            headers={"Host": host or f"127.0.0.1:{port}", "Accept-Language": self.language},
        )
        answer = connection.getresponse()
        assert answer.headers["Cache-Control"] == "no-store"
        assert answer.headers["Referrer-Policy"] == "no-referrer"
        if answer.status == 303:
            assert answer.read() == b""
            return 303, answer.headers["Location"]
        assert "frame-ancestors 'none'" in answer.headers["Content-Security-Policy"]
        return answer.status, answer.read().decode()


@pytest.fixture
def listener() -> Iterator[Listener]:
    made = Listener()
    yield made
    made.returning.close()


def test_the_right_return_ends_it_and_says_that_the_tab_may_be_closed(listener: Listener) -> None:
    status, page = listener.visit(code="c", state=listener.returning.state)
    assert status == 200
    assert "You can close this page" in page
    assert listener.returning.wait(30) is GRANT
    assert listener.codes == ["c"]


def test_a_gateway_that_has_a_page_for_the_end_shows_it(listener: Listener) -> None:
    """The address with the code is then neither in the bar of the browser nor in its history."""
    answer = listener.visit(code="c", state=listener.returning.state, page="1")
    assert answer == (303, "https://gateway.test/auth/cli/ended")
    assert listener.returning.wait(30) is GRANT


def test_a_refusal_of_the_gateway_is_told_on_its_page(listener: Listener) -> None:
    answer = listener.visit(error="access_denied&a=b", state=listener.returning.state, page="1")
    assert answer == (303, "https://gateway.test/auth/cli/ended?error=access_denied%26a%3Db")


def test_why_the_gateway_refused_is_told_in_the_terminal_with_the_request_id(listener: Listener) -> None:
    told = {
        "error": "login-refused",
        "error_description": "no\x1b[31m membership",
        "request_id": "r-1",
        "failure": "f-1",
    }
    answer = listener.visit(**told, state=listener.returning.state, page="1")
    assert answer == (303, "https://gateway.test/auth/cli/ended?error=login-refused&failure=f-1")
    with pytest.raises(LoginRefused) as refused:
        listener.returning.wait(30)
    assert refused.value.summary == "the gateway refused the sign-in"
    assert refused.value.cause == "noU+001B[31m membership"
    assert refused.value.hint == "the administrator finds more under the request id r-1"


def test_what_nobody_could_decide_is_no_refusal(listener: Listener) -> None:
    listener.visit(error="provider-failed", error_description="unavailable", state=listener.returning.state)
    with pytest.raises(LoginRefused) as failed:
        listener.returning.wait(30)
    assert failed.value.summary == "the sign-in failed"


def test_a_long_cause_is_cut(listener: Listener) -> None:
    listener.visit(error="login-refused", error_description="x" * 5000, state=listener.returning.state)
    with pytest.raises(LoginRefused) as refused:
        listener.returning.wait(30)
    assert len(refused.value.cause or "") == 500


def test_a_failed_step_up_does_not_say_that_nobody_is_signed_in() -> None:
    def redeem(code: str) -> None:
        raise CredentialError("the gateway did not accept the step-up")

    listener = Listener()
    listener.returning.close()
    listener.returning = Return(redeem, "https://gateway.test", STEP_UP)  # type: ignore[arg-type]
    try:
        _, page = listener.visit(code="c", state=listener.returning.state)
        assert "You are still signed in" in page
        assert "You are not signed in" not in page
        with pytest.raises(CredentialError):
            listener.returning.wait(30)
    finally:
        listener.returning.close()


def test_a_refused_step_up_has_its_own_words(listener: Listener) -> None:
    stepping_up = Return(listener.redeem, "https://gateway.test", STEP_UP)
    try:
        listener.returning, before = stepping_up, listener.returning
        before.close()
        listener.visit(error="login-refused", error_description="not confirmed", state=stepping_up.state)
        with pytest.raises(LoginRefused, match="the step-up failed") as refused:
            stepping_up.wait(30)
        assert refused.value.cause == "not confirmed"
    finally:
        stepping_up.close()


def test_a_gateway_that_did_not_answer_is_not_asked_for_a_page(listener: Listener) -> None:
    listener.failure = CredentialError("the gateway is unreachable")
    status, page = listener.visit(code="c", state=listener.returning.state, page="1")
    assert status == 400
    assert "You are not signed in" in page
    with pytest.raises(CredentialError):
        listener.returning.wait(30)


def test_the_page_is_in_the_language_of_the_browser(listener: Listener) -> None:
    listener.language = "de-AT,en;q=0.5"
    status, page = listener.visit(code="c", state=listener.returning.state)
    assert status == 200
    assert '<html lang="de">' in page
    assert "Sie sind auf der Kommandozeile angemeldet" in page
    assert "<script" not in page


def test_what_was_not_begun_here_changes_nothing(listener: Listener) -> None:
    state = listener.returning.state
    assert listener.visit(code="c", state="other")[0] == 404
    assert listener.visit(code="c")[0] == 404
    assert listener.visit("/other", code="c", state=state)[0] == 404
    assert listener.visit(code="c", state="ü")[0] == 404
    # A page elsewhere whose name was pointed at this machine.
    assert listener.visit(host="evil.example", code="c", state=state)[0] == 404
    assert listener.codes == []
    with pytest.raises(CredentialError):
        listener.returning.wait(0)
    assert listener.visit(code="c", state=state)[0] == 200


def test_a_second_return_is_not_redeemed(listener: Listener) -> None:
    state = listener.returning.state
    listener.visit(code="c", state=state)
    assert listener.visit(code="d", state=state)[0] == 400
    assert listener.codes == ["c"]


def test_a_refusal_is_raised_and_shown_without_markup_of_others(listener: Listener) -> None:
    status, page = listener.visit(error="<script>", state=listener.returning.state)
    assert status == 400
    assert "<script>" not in page
    with pytest.raises(LoginRefused) as caught:
        listener.returning.wait(30)
    assert caught.value.cause == "<script>"


def test_a_connection_that_says_nothing_keeps_nobody_waiting(listener: Listener) -> None:
    """Browsers open connections that they may need later."""
    with socket.create_connection(("127.0.0.1", listener.returning.port), timeout=30):
        assert listener.visit(code="c", state=listener.returning.state)[0] == 200
        assert listener.returning.wait(30) is GRANT


def test_it_listens_on_this_machine_only(listener: Listener) -> None:
    assert listener.returning._server.server_address[0] == "127.0.0.1"
