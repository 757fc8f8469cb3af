"""The log: one line per event, with fields, in two forms, and never with a secret."""

from __future__ import annotations

import io
import json
import logging
import warnings
from collections.abc import Iterator

import pytest

from ostiary.errors import ConfigurationError
from ostiary_gateway.audit.sign_ins import LoginEvent, LoginEventKind, log_event
from ostiary_gateway.observability.logging import LINES_PER_SECOND, SourceLimit, configure_logging, report_suppressed
from ostiary_gateway.testing import FakeClock

# Ours, with a checksum at its end; a signed one; and a password that looks like a word.
CANARIES = (
    "ost_kzX3v9QpL0canaryW8mB2nD7rT5yH1cJ6fS4gA",
    "eyJhbGciOiJSUzI1NiJ9.eyJzdWIiOiJjYW5hcnkifQ.c2lnbmF0dXJlLWNhbmFyeQ",
)
log = logging.getLogger("ostiary_gateway.test")


@pytest.fixture(autouse=True)
def as_it_was() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    logging.captureWarnings(False)


@pytest.fixture
def stream() -> io.StringIO:
    return io.StringIO()


def test_json_is_one_object_per_line(stream: io.StringIO) -> None:
    configure_logging("json", "info", stream)
    log.warning("a provider failed", extra={"request_id": "r-1", "user": "jane", "cause": "a\nb", "count": 3})
    log.info("second %s", "event")
    first, second = (json.loads(line) for line in stream.getvalue().splitlines())
    assert first.pop("time").endswith("Z")
    assert first == {
        "level": "warning",
        "logger": "ostiary_gateway.test",
        "event": "a provider failed",
        "request_id": "r-1",
        "user": "jane",
        "cause": "a\nb",
        "count": 3,
    }
    assert second["event"] == "second event"


def test_text_is_one_line_per_event_with_quotes_where_needed(stream: io.StringIO) -> None:
    configure_logging("text", "info", stream)
    log.error("it\nfailed", extra={"cause": 'x="1"\nINFO forged', "user": "jane", "empty": None, "list": ["a", 1]})
    (line,) = stream.getvalue().splitlines()
    assert line.split("Z ", 1)[1] == 'ERROR it failed cause="x=\\"1\\"\\nINFO forged" user=jane list=["a", 1]'


def test_a_field_does_not_take_the_place_of_the_event(stream: io.StringIO) -> None:
    configure_logging("json", "info", stream)
    log.info("true", extra={"event": "forged", "level": "debug", "time": "never"})
    line = json.loads(stream.getvalue())
    assert (line["event"], line["level"]) == ("true", "info")
    assert line["time"] != "never"


def test_levels_hold(stream: io.StringIO) -> None:
    configure_logging("text", "warning", stream)
    log.info("quiet")
    logging.getLogger("httpx2").info("GET https://issuer.test/?code=canary")
    assert stream.getvalue() == ""
    configure_logging("text", "debug", stream)
    logging.getLogger("httpx2").info("GET https://issuer.test/?code=canary")
    assert stream.getvalue() == ""


def test_configuring_twice_writes_once(stream: io.StringIO) -> None:
    configure_logging("text", "info", io.StringIO())
    configure_logging("text", "info", stream)
    log.info("once")
    assert stream.getvalue().count("once") == 1


def test_warnings_of_libraries_are_logged(stream: io.StringIO) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        configure_logging("json", "info", stream)
        warnings.warn("old", stacklevel=1)
    assert "old" in json.loads(stream.getvalue())["event"]


@pytest.mark.parametrize(("format", "level"), [("xml", "info"), ("json", "loud")])
def test_a_mistake_in_the_settings_is_told(format: str, level: str) -> None:
    with pytest.raises(ConfigurationError):
        configure_logging(format, level)


def test_a_message_with_wrong_arguments_ends_nothing(stream: io.StringIO) -> None:
    handler = configure_logging("json", "info", stream)
    handler.handle(logging.makeLogRecord({"msg": "%s and %s", "args": ("canary",)}))
    assert "and" in json.loads(stream.getvalue())["event"]
    assert "canary" not in stream.getvalue()


@pytest.mark.parametrize("format", ["json", "text"])
@pytest.mark.parametrize("canary", CANARIES)
def test_a_canary_token_reaches_no_line(stream: io.StringIO, format: str, canary: str) -> None:
    """L6: in the message, its arguments, a field, a nested field, a name, an exception, another library's words."""
    configure_logging(format, "debug", stream)
    log.info(f"token {canary}")
    log.info("asked with %s", canary)
    log.info("headers %r", {"authorization": f"Bearer {canary}"})
    log.info("x", extra={"cause": canary, "request_id": canary, "deep": {"a": [{"b": canary, canary: 1}]}})
    log.info("x", extra={canary: "field"})
    log.info("x", extra={"uri": f"/auth?access_token={canary}", "error": ValueError(canary)})
    log.info("x", extra={"set": {canary}, "bytes": canary.encode(), "far": {"a": {"b": {"c": {"d": {"e": canary}}}}}})
    try:
        try:
            raise KeyError(canary)
        except KeyError as error:
            raise RuntimeError(f"failed with {canary}") from error
    except RuntimeError:
        log.exception("failed", stack_info=True)
    logging.getLogger("somebody.else").warning("sent %s", canary)
    assert stream.getvalue().count("\n") >= 8
    assert canary not in stream.getvalue()
    assert canary.split(".")[-1] not in stream.getvalue()


def test_known_secrets_are_taken_out_whatever_they_look_like(stream: io.StringIO) -> None:
    """L6."""
    configure_logging("json", "info", stream, secrets=["correct horse"])
    log.info("the password is correct horse", extra={"cause": "correct horse"})
    assert "horse" not in stream.getvalue()


def test_ids_stay_readable_and_only_as_ids(stream: io.StringIO) -> None:
    configure_logging("json", "info", stream)
    uuid = "3f2b8c1e-9a4d-4e6f-8b7a-1c2d3e4f5a6b"
    log.info("x", extra={"audit_id": uuid, "request_id": uuid, "cause": "plain words"})
    line = json.loads(stream.getvalue())
    assert (line["audit_id"], line["request_id"], line["cause"]) == (uuid, uuid, "plain words")


def test_a_traceback_stands_below_its_line_in_text(stream: io.StringIO) -> None:
    configure_logging("text", "info", stream)
    try:
        raise ValueError("no")
    except ValueError:
        log.exception("failed")
    first, *rest = stream.getvalue().splitlines()
    assert first.endswith("ERROR failed")
    assert all(line.startswith("    ") for line in rest)
    assert rest[-1].strip() == "ValueError: no"


def test_a_field_that_cannot_be_shown_ends_nothing(stream: io.StringIO) -> None:
    class Broken:
        def __str__(self) -> str:
            raise RuntimeError("canary")

    configure_logging("json", "info", stream)
    log.info("x", extra={"cause": Broken()})
    assert json.loads(stream.getvalue())["cause"] == "<Broken>"


def test_a_log_that_cannot_be_written_says_nothing_of_what_it_would_have_said(
    stream: io.StringIO, capsys: pytest.CaptureFixture[str]
) -> None:
    """L6: the standard library's own report holds the arguments as they are."""
    configure_logging("text", "info", stream)
    stream.close()
    log.info("asked with %s", CANARIES[0])
    shown = capsys.readouterr()
    assert CANARIES[0] not in shown.out + shown.err


# --- floods ---


@pytest.fixture
def limited(stream: io.StringIO) -> FakeClock:
    """The clock by which the lines to *stream* are limited."""
    clock = FakeClock()
    handler = configure_logging("json", "info", stream)
    handler.filters[:] = [SourceLimit(now=clock.monotonic)]
    return clock


def refuse(times: int, **fields: str) -> None:
    for number in range(times):
        log.info("a request was refused", extra={"request_id": f"r-{number}", "status": 401, **fields})


def lines_in(stream: io.StringIO) -> list[dict[str, object]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_a_source_writes_at_most_ten_lines_a_second(stream: io.StringIO, limited: FakeClock) -> None:
    refuse(1000, address="192.0.2.1")
    assert len(lines_in(stream)) == LINES_PER_SECOND
    refuse(3, address="192.0.2.2")
    refuse(3, user="jane", address="192.0.2.1")
    assert len(lines_in(stream)) == LINES_PER_SECOND + 6


def test_the_next_line_of_a_source_says_how_many_were_suppressed(stream: io.StringIO, limited: FakeClock) -> None:
    refuse(1000, address="192.0.2.1")
    limited.advance(seconds=1)
    refuse(2, address="192.0.2.1")
    first, second = lines_in(stream)[LINES_PER_SECOND:]
    assert first["suppressed"] == 990
    assert "suppressed" not in second


def test_what_was_suppressed_is_reported_when_a_source_falls_silent(stream: io.StringIO, limited: FakeClock) -> None:
    refuse(25, address="2001:db8::1")
    refuse(25, address="2001:db8::2")
    report_suppressed()
    assert len(lines_in(stream)) == LINES_PER_SECOND
    limited.advance(seconds=1)
    report_suppressed()
    report_suppressed()
    (line,) = lines_in(stream)[LINES_PER_SECOND:]
    assert (line["event"], line["suppressed"]) == ("log lines were suppressed", 40)
    # They are of one subscriber's network.
    assert line["client"] == "2001:db8::1"


def test_lines_about_requests_from_nobody_known_share_one_limit_and_other_lines_have_none(
    stream: io.StringIO, limited: FakeClock
) -> None:
    refuse(100)
    for number in range(100):
        log.info("line %d of a file is invalid", number)
    assert len(lines_in(stream)) == LINES_PER_SECOND + 100


def test_a_sign_in_counts_for_its_address_which_is_shown_once(stream: io.StringIO, limited: FakeClock) -> None:
    for number in range(50):
        log_event(LoginEvent(LoginEventKind.REFUSED, 401, remote_address="192.0.2.1", id=f"r-{number}"))
    lines = lines_in(stream)
    assert len(lines) == LINES_PER_SECOND
    assert "from 192.0.2.1" in str(lines[0]["event"])
    assert "source" not in lines[0]
