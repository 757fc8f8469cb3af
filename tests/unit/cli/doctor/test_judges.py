"""The judges: what is wrong with what arrived, and what is not."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ostiary.cli.doctor import judges
from ostiary.cli.doctor.probe import Ground, Probe
from ostiary.cli.doctor.probes.identity import spellings
from ostiary.cli.doctor.traffic.observed import Answer, Arrival, Observation
from ostiary.model import Secret

GROUND = Ground(
    host=b"shop.example",
    path=b"/",
    claim=b"doctor-claim",
    token=Secret("a-token-of-alice"),
    denied=b"/admin",
    expected_user="alice",
)
PROBE = Probe(label="the probe", claims=(b"X-Remote-User",))
NOTHING = Observation(Answer(403))


def arrival(*lines: bytes, target: bytes = b"/", **more: object) -> Arrival:
    head = b"\r\n".join([b"GET " + target + b" HTTP/1.1", *lines])
    headers = tuple((name, value.strip()) for name, _, value in (line.partition(b":") for line in lines))
    return Arrival(head, b"GET", target, headers, **more)  # type: ignore[arg-type]


def observed(*lines: bytes, target: bytes = b"/", **more: object) -> Observation:
    return Observation(Answer(200), (arrival(*lines, target=target, **more),))


def test_nothing_is_wrong_with_what_does_not_arrive(subtests: pytest.Subtests) -> None:
    cases = [
        judges.nothing_arrives,
        judges.user_is_kept,
        judges.no_claim_arrives,
        judges.no_trailer_arrives,
        judges.no_token_arrives,
        judges.no_secret_arrives,
        judges.denied_path_stays_out,
        judges.one_host_arrives,
        judges.one_request_arrives,
        judges.no_upgrade_arrives,
        judges.no_oracle_answers,
        judges.gateway_is_not_exposed,
    ]
    for judge in cases:
        with subtests.test(judge=judge):
            assert judge(GROUND, PROBE, NOTHING) == ""


@given(st.sampled_from(spellings(b"X-Remote-User")))
def test_a_claim_is_known_in_every_spelling(name: bytes) -> None:
    assert "arrived with the value of the client" in judges.no_claim_arrives(
        GROUND, PROBE, observed(name + b": doctor-claim")
    )


def test_what_the_gateway_says_is_no_claim() -> None:
    assert judges.no_claim_arrives(GROUND, PROBE, observed(b"X-Remote-User: alice")) == ""


@pytest.mark.parametrize(
    ("lines", "wrong"),
    [
        ((b"X-Remote-User: alice",), ""),
        ((), "the application was not told the user: no X-Remote-User arrived"),
        ((b"X-Remote-User: ",), "the application was not told the user: no X-Remote-User arrived"),
        ((b"X-Remote-User: alice", b"X_Remote_User: alice"), "X-Remote-User arrived 2 times"),
        ((b"X-Remote-User: bob",), 'X-Remote-User was "bob", and the token is of "alice"'),
    ],
)
def test_the_user_must_arrive_once(lines: tuple[bytes, ...], wrong: str) -> None:
    assert judges.user_is_told(GROUND, PROBE, observed(*lines)) == wrong


def test_the_token_is_noticed_and_not_quoted() -> None:
    for line in (
        b"Authorization: Bearer a-token-of-alice",
        b"Cookie: t=a-token-of-alice",
        b"X: YS10b2tlbi1vZi1hbGljZQ",
    ):
        wrong = judges.no_token_arrives(GROUND, PROBE, observed(line))
        assert wrong.startswith("the token arrived in")
        assert "alice" not in wrong
    assert judges.no_token_arrives(GROUND, PROBE, observed(target=b"/?t=a-token-of-alice"))
    assert judges.no_token_arrives(GROUND, PROBE, observed(b"X: other")) == ""


def test_the_denied_path_is_known_whatever_it_looks_like() -> None:
    wrong = judges.denied_path_stays_out(GROUND, PROBE, observed(target=b"/x/..%2fadmin?doctor=1"))
    assert wrong == "the probe arrived as /x/..%2fadmin"
    assert judges.denied_path_stays_out(GROUND, PROBE, observed(target=b"/x?to=/admin")) == ""


def test_two_programs_could_disagree(subtests: pytest.Subtests) -> None:
    cases: list[tuple[bytes, ...]] = [
        (b"Content-Length: 5", b"Transfer-Encoding: chunked"),
        (b"Content-Length: 5", b"Content-Length: 5"),
        (b"Content-Length: +5",),
        (b"Content-Length: 5, 5",),
        (b"Transfer-Encoding: xchunked",),
        (b"Transfer-Encoding: chunked, identity",),
        (b"Transfer-Encoding: identity", b"Transfer-Encoding: chunked"),
        (b"X: a", b" folded: b"),
        (b"X : a",),
        (b"X: a\0b",),
        (b"X: a\rb",),
    ]
    for lines in cases:
        with subtests.test(lines=lines):
            assert judges.framing_doubt(arrival(*lines))


@pytest.mark.parametrize("line", [b"Content-Length: 5", b"Transfer-Encoding: chunked", b"X: Content-Length"])
def test_nobody_disagrees_on_a_plain_request(line: bytes) -> None:
    assert judges.framing_doubt(arrival(line)) == ""


def test_a_request_inside_of_another_is_noticed() -> None:
    for inner in (arrival(is_inner=True), arrival(number=1)):
        observation = Observation(Answer(200), (arrival(b"Content-Length: 9"), inner))
        assert "arrived as one of its own" in judges.one_request_arrives(GROUND, PROBE, observation)


@given(st.binary(max_size=200))
def test_what_came_from_outside_is_fit_for_a_line_of_a_report(data: bytes) -> None:
    text = judges.shown(data)
    assert text.isprintable() or text == ""
    assert len(text) < 500
