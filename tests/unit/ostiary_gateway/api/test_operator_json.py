"""What operators read as JSON: what was asked, decided and explained, and no digest of a token."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

from ostiary.model import Attributes, Decision, RequestInfo, UserInfo, Verdict
from ostiary_gateway.api.operator_json import (
    attributes_json,
    ended_json,
    explanation_json,
    marks_json,
    session_json,
    who_can_json,
)
from ostiary_gateway.audit.ended_requests import EndedRequest
from ostiary_gateway.authorization.chain import ChainExplanation, Step, WhoCan
from ostiary_gateway.interfaces.authorization import Explanation, Subject
from ostiary_gateway.interfaces.token_store import Revocation, RevocationKind, Session, SessionKind

ALICE = UserInfo("alice", groups=("dev",))
AT = datetime(2030, 1, 1, 12, tzinfo=timezone(timedelta(hours=1)))


def test_empty_fields_of_a_request_are_left_out() -> None:
    pods = RequestInfo("get", "GET", "/api/v1/pods", is_resource=True, resource="pods")
    assert attributes_json(Attributes(ALICE, pods)) == {
        "user": "alice",
        "groups": ["dev"],
        "verb": "get",
        "resource": "pods",
    }
    path = RequestInfo("get", "GET", "/healthz", upstream="prod")
    assert attributes_json(Attributes(ALICE, path)) == {
        "user": "alice",
        "groups": ["dev"],
        "verb": "get",
        "path": "/healthz",
        "upstream": "prod",
    }


def test_each_step_of_a_chain_says_what_it_decided_or_why_it_could_not() -> None:
    denial = Decision(Verdict.NO_OPINION, "no rule")
    steps = (Step("files", Explanation(denial, closest="a role")), Step("remote", error="timed out"), Step("last"))
    value = explanation_json(ChainExplanation(None, steps, "timed out"))
    assert (value["decision"], value["error"]) == (None, "timed out")
    assert value["steps"] == [
        {
            "provider": "files",
            "verdict": denial.verdict.value,
            "reason": "no rule",
            "hidden": False,
            "closest": "a role",
            "failed": "",
            "remedy": "",
        },
        {"provider": "remote", "error": "timed out"},
        {"provider": "last"},
    ]


def test_the_mark_of_a_token_shows_the_beginning_of_its_digest_only() -> None:
    token = Revocation(RevocationKind.TOKEN, "ab" * 32, by="root")
    before = Revocation(RevocationKind.BEFORE, "", AT, by="root")
    items = marks_json([token, before])["items"]
    assert isinstance(items, list)
    first, second = items
    assert first["value"] == "abababab"
    assert "before" not in first
    assert second["before"] == "2030-01-01T11:00:00+00:00"


def test_who_can_names_the_providers_that_cannot_tell() -> None:
    value = who_can_json(WhoCan((Subject("User", "alice"),), ("remote",)))
    assert value["subjects"] == [{"kind": "User", "name": "alice", "namespace": "", "via": ""}]
    assert value["unknown"] == ["remote"]


def test_a_sign_in_that_failed_is_told_from_another_request() -> None:
    request = EndedRequest("id", AT.astimezone(UTC), 401, "unknown token", "GET", "/api", "192.0.2.1")
    value = ended_json(request)
    assert value["kind"] == "Request"
    assert value["from"] == "192.0.2.1"
    assert "login" not in value
    sign_in = EndedRequest("id", AT, 403, "no", "GET", "/auth", "192.0.2.1", "alice", "refused", "idp")
    assert ended_json(sign_in)["kind"] == "SignIn"


def test_an_api_token_is_told_from_a_sign_in() -> None:
    session = Session("s1", ALICE, "staff", AT, AT, kind=SessionKind.API_TOKEN, name="backup", last_used_at=AT)
    told = session_json(session)
    assert (told["kind"], told["name"], told["lastUsed"]) == ("api-token", "backup", "2030-01-01T11:00:00+00:00")
    told = session_json(Session("s2", ALICE, "staff", AT, AT))
    assert (told["kind"], told["name"], told["lastUsed"]) == ("sign-in", "", None)
