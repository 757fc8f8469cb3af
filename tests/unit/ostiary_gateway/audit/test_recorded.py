"""Audit events, read back as what was asked and decided."""

from __future__ import annotations

import json
import time
import tracemalloc
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ostiary.errors import ConfigurationError
from ostiary.model import Decision, UserInfo, Verdict
from ostiary_gateway.audit.auditor import Auditor
from ostiary_gateway.audit.log_files import Counts
from ostiary_gateway.audit.recorded import RecordedRequest, decode_request, find, read
from ostiary_gateway.interfaces.attributes import RequestLine
from ostiary_gateway.testing import FakeClock
from ostiary_gateway.wire.audit_policy import DEFAULT_POLICY
from ostiary_gateway.wire.request_info import request_info

ALICE = UserInfo("alice", "17", ("dev", "a,b", "system:authenticated"), (("scopes", ("x", "y")),))
ALLOWED, REFUSED = Decision(Verdict.ALLOW, "a rule"), Decision(Verdict.NO_OPINION, "")


class Lines:
    dropped = 0

    def __init__(self) -> None:
        self.lines: list[str] = []

    def accept(self, line: str) -> None:
        self.lines.append(line)

    async def flush(self) -> None: ...

    async def close(self) -> None: ...


def event(
    method: str,
    uri: str,
    decision: Decision = REFUSED,
    *,
    code: int = 403,
    actor: UserInfo | None = None,
    id: str = "id-1",
    upstream: str = "",
) -> str:
    """The line that the gateway writes for such a request."""
    sink = Lines()
    auditor = Auditor(DEFAULT_POLICY, [sink], clock=FakeClock(), tells_upstream=True)
    path, _, query = uri.partition("?")
    info = replace(request_info(RequestLine(method, path, query)), upstream=upstream)
    prepared = auditor.prepare(
        info, actor or ALICE, request_uri=uri, decision=decision, impersonated=ALICE if actor else None
    )
    assert prepared is not None
    prepared.complete(id, "", code, received_at=0.0, at=0.0)
    return sink.lines[0]


def back(line: str) -> RecordedRequest:
    found = decode_request(line.encode())
    assert found is not None
    return found


def test_what_the_gateway_records_is_read_back_as_it_was(subtests: pytest.Subtests) -> None:
    cases = [
        ("GET", "/api/v1/namespaces/team/pods/web"),
        ("GET", "/api/v1/namespaces/team/pods?watch=1&labelSelector=app%3Dweb"),
        ("GET", "/api/v1/pods?fieldSelector=metadata.name%3Dweb"),
        ("DELETE", "/apis/apps/v1/namespaces/team/deployments"),
        ("POST", "/api/v1/namespaces/team/pods/web/exec?command=sh"),
        ("PATCH", "/apis/apps/v1/namespaces/team/deployments/web/scale"),
        ("PUT", "/api/v1/namespaces/team"),
        ("GET", "/healthz"),
        ("GET", "/logs/a%20b%3F%2A"),
    ]
    for method, uri in cases:
        with subtests.test(method=method, uri=uri):
            path, _, query = uri.partition("?")
            found = back(event(method, uri))
            assert found.attributes.user == ALICE
            sent = request_info(RequestLine(method, path, query))
            # The log does not tell what kind of API a path belongs to.
            assert found.attributes.request == (sent if sent.is_resource else replace(sent, of_kubernetes=False))
            assert not found.decision.allowed


SEGMENTS = st.sampled_from(
    ["namespaces", "team", "pods", "watch", "proxy", "log", "exec", "status", "finalize", "web", "a%20b", "apps", "v1"]
)
QUERIES = st.sampled_from(
    ["", "watch=1", "watch=0", "limit=5", "labelSelector=a%3Db", "fieldSelector=metadata.name%3Dweb", "fieldselector=x"]
)


@settings(max_examples=400, deadline=None)
@given(
    st.sampled_from(["GET", "POST", "PUT", "PATCH", "DELETE", "HEAD"]),
    st.sampled_from(["/api/v1", "/apis/apps/v1"]),
    st.lists(SEGMENTS, min_size=1, max_size=6),
    QUERIES,
)
def test_what_need_not_be_parsed_again_is_read_as_if_it_were(
    method: str, root: str, segments: list[str], query: str
) -> None:
    """Most lines say no more than the reference beside them; those that do must not be taken for such a line."""
    path = "/".join([root, *segments])
    try:
        sent = request_info(RequestLine(method, path, query))
    except ValueError:
        return
    read_back = back(event(method, f"{path}?{query}" if query else path)).attributes.request
    # The log has the verb, and not the method.
    read_back = replace(read_back, method=method)
    decoded = request_info(RequestLine(_METHODS.get(sent.verb, "GET"), path, query))
    if replace(decoded, method=sent.method) == sent:
        assert read_back == sent
    else:
        assert (read_back.verb, read_back.resource, read_back.name) == (sent.verb, sent.resource, sent.name)


_METHODS = {"create": "POST", "update": "PUT", "patch": "PATCH", "delete": "DELETE", "deletecollection": "DELETE"}


@pytest.mark.parametrize("uri", ["/api/v1/pods", "/healthz"])
def test_the_upstream_is_read_back(uri: str) -> None:
    """Another upstream may have another policy."""
    assert back(event("GET", uri, upstream="dev")).attributes.upstream == "dev"
    assert back(event("GET", uri)).attributes.upstream == ""


def test_a_refusal_that_was_hidden_is_told_as_one() -> None:
    assert back(event("GET", "/api/v1/pods", code=404)).decision.hidden
    assert not back(event("GET", "/api/v1/pods", code=403)).decision.hidden
    # The object was missing; the decision was made.
    assert not back(event("GET", "/api/v1/pods", ALLOWED, code=404)).decision.hidden


def test_what_a_tokens_scope_refused_is_told_as_such() -> None:
    beyond = Decision(Verdict.DENY, "beyond this token's scope: get nodes -A")
    told = json.loads(event("GET", "/api/v1/pods", beyond))
    told["annotations"]["ostiary.dev/scope"] = "get nodes -A"
    refused = back(json.dumps(told))
    assert (refused.scope, refused.refused_by_scope) == ("get nodes -A", True)
    assert not back(event("GET", "/api/v1/pods")).refused_by_scope


def test_who_acts_for_somebody_else_asks_what_the_other_may() -> None:
    assert back(event("GET", "/api/v1/pods", actor=UserInfo("root"))).attributes.user == ALICE


def test_a_time_without_a_zone_is_utc(monkeypatch: pytest.MonkeyPatch) -> None:
    told = json.loads(event("GET", "/healthz"))
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    try:
        at = back(json.dumps(told | {"requestReceivedTimestamp": "2026-01-01T00:00:00"})).at
    finally:
        monkeypatch.undo()
        time.tzset()
    assert at.isoformat() == "2026-01-01T00:00:00+00:00"


def test_nobody_is_impersonated_where_the_field_is_null() -> None:
    line = event("GET", "/api/v1/pods").replace('"user":', '"impersonatedUser":null,"user":', 1)
    assert (back(line).attributes.user, back(line).actor) == (ALICE, "")


def test_the_name_of_a_new_object_was_not_known_when_it_was_decided_on() -> None:
    """kube-apiserver fills it in later; a rule for named objects does not allow to create them."""
    told = json.loads(event("POST", "/api/v1/namespaces/team/pods"))
    told["objectRef"]["name"] = "web"
    asked = back(json.dumps(told)).attributes.request
    assert (asked.verb, asked.resource, asked.namespace, asked.name) == ("create", "pods", "team", "")
    of_one = event("POST", "/api/v1/namespaces/team/pods/web/exec")
    assert back(of_one).attributes.request.name == "web"


def test_long_texts_of_many_users_are_not_kept(tmp_path: Path) -> None:
    told, log = json.loads(event("GET", "/healthz", ALLOWED)), tmp_path / "log"
    with log.open("w") as file:
        for number in range(400):
            extra = {"x": [f"{number}" + "y" * 100_000]}
            file.write(json.dumps(told | {"user": {"username": "a", "extra": extra}}) + "\n")
    tracemalloc.start()
    try:
        assert sum(1 for _ in read([log], Counts())) == 400
        assert tracemalloc.get_traced_memory()[1] < 10_000_000
    finally:
        tracemalloc.stop()


def test_a_resource_of_another_api_is_taken_from_its_reference() -> None:
    told = json.loads(event("GET", "/api/v1/namespaces/team/pods/web"))
    told |= {"requestURI": "/v1/team/jobs/j1", "verb": "restart"}
    told["objectRef"] = {"resource": "jobs", "namespace": "team", "name": "j1"}
    asked = back(json.dumps(told)).attributes.request
    assert (asked.verb, asked.resource, asked.namespace, asked.name, asked.path) == (
        *("restart", "jobs", "team", "j1"),
        "/v1/team/jobs/j1",
    )


def test_what_decides_nothing_or_is_broken_is_none(subtests: pytest.Subtests) -> None:
    cases: list[dict[str, Any]] = [
        {"annotations": None},
        {"annotations": {}},
        {"user": {}},
        {"user": None},
        {"requestURI": None, "verb": None},
        {"requestReceivedTimestamp": "soon"},
        {"requestReceivedTimestamp": "0001-01-01T00:00:00+23:59"},
        {"impersonatedUser": {"groups": ["admins"]}},
        {"impersonatedUser": {"username": 3}},
        {"auditID": 3},
        {"objectRef": "x"},
    ]
    for change in cases:
        with subtests.test(change=change):
            told = json.loads(event("GET", "/api/v1/pods")) | change
            told = {key: value for key, value in told.items() if value is not None}
            assert decode_request(json.dumps(told).encode()) is None


KEYS = st.sampled_from(["user", "username", "groups", "extra", "annotations", "verb", "objectRef"])


@settings(max_examples=60, deadline=None)
@given(
    st.recursive(
        st.none() | st.text(max_size=5) | st.integers(),
        lambda inner: st.lists(inner, max_size=2) | st.dictionaries(KEYS, inner),
        max_leaves=8,
    )
)
def test_whatever_is_in_an_event_reading_it_does_not_fail(value: Any) -> None:
    told = json.loads(event("GET", "/api/v1/pods"))
    if isinstance(value, dict):
        decode_request(json.dumps(told | value).encode())
    for key in told:
        decode_request(json.dumps(told | {key: value}).encode())


def test_an_id_is_found_in_any_of_the_logs_and_in_any_case(tmp_path: Path) -> None:
    first, second = tmp_path / "a", tmp_path / "b"
    first.write_text(event("GET", "/healthz", id="one") + "half a li\n")
    second.write_text("\n" + event("GET", "/metrics", id="two"))
    found = find([first, second], " TWO ")
    assert isinstance(found, RecordedRequest)
    assert found.attributes.request.path == "/metrics"
    assert find([first, second], "tw") is None
    with pytest.raises(ConfigurationError) as raised:
        find([tmp_path / "gone"], "x")
    assert raised.value.code == "config-unreadable"


def test_who_acts_for_somebody_else_is_told() -> None:
    assert back(event("GET", "/api/v1/pods", actor=UserInfo("root"))).actor == "root"
    assert back(event("GET", "/api/v1/pods")).actor == ""


def test_what_lasts_is_read_once_in_whatever_order_its_events_are(tmp_path: Path) -> None:
    """Rotated logs are often given the newest first."""
    line = event("GET", "/api/v1/pods?watch=1", id="one")
    started = json.dumps(json.loads(line) | {"stage": "ResponseStarted"}) + "\n"
    for number, order in enumerate(((line, started), (started, line))):
        logs = [tmp_path / f"{number}-{each}" for each in range(2)]
        for log, text in zip(logs, order, strict=True):
            log.write_text(text)
        assert [found.id for found in read(logs, Counts())] == ["one"]


def test_a_client_that_chooses_the_ids_of_its_requests_hides_none(tmp_path: Path) -> None:
    """kube-apiserver takes the id from the header Audit-ID."""
    log = tmp_path / "log"
    watch = event("GET", "/api/v1/pods?watch=1", id="one")
    log.write_text(watch + event("GET", "/api/v1/secrets", id="one") + event("GET", "/metrics", id="one") + watch)
    assert len(list(read([log], Counts()))) == 4


def test_the_upstream_that_events_do_not_name_is_filled_in(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text(event("GET", "/api/v1/pods") + event("GET", "/metrics") + event("GET", "/api/v1/pods", upstream="x"))
    named = [record.attributes.upstream for record in read([log], Counts(), upstreams=["only"])]
    assert named == ["only", "only", "x"]
    assert next(read([log], Counts(), upstreams=["a", "b"])).attributes.upstream == ""


@pytest.mark.parametrize(
    ("sent", "decided_on"),
    [("/dev/version", "/version"), ("/dev", "/"), ("/devil", "/devil"), ("/dev/api/v1/pods?watch=1", "/api/v1/pods")],
)
def test_a_prefix_that_an_upstream_is_not_told_of_is_left_out(tmp_path: Path, sent: str, decided_on: str) -> None:
    """Clients send it, so events have it; a rule for /version is about the rest."""
    log, prefixes = tmp_path / "log", {"d": "/dev"}
    log.write_text(event("GET", sent, ALLOWED, id="one", upstream="d"))
    (record,) = read([log], Counts(), prefixes=prefixes)
    assert record.attributes.request.path == decided_on
    assert find([log], "one", upstreams=["d"], prefixes=prefixes) == record
    (record,) = read([log], Counts())
    assert record.attributes.request.path == sent.partition("?")[0]


def test_what_a_cluster_said_about_a_request_is_not_taken_for_the_request(tmp_path: Path) -> None:
    log = tmp_path / "log"
    line = event("GET", "/healthz", ALLOWED, id="one", code=200)
    shadow = json.dumps(json.loads(line) | {"stage": "ShadowReview", "verb": "delete"}) + "\n"
    log.write_text(line + shadow)
    assert [found.attributes.request.verb for found in read([log], Counts())] == ["get"]
    found = find([log], "one")
    assert isinstance(found, RecordedRequest)
    assert found.attributes.request.verb == "get"


def test_each_request_is_read_once_and_what_cannot_be_read_is_counted(tmp_path: Path) -> None:
    log = tmp_path / "log"
    line = event("GET", "/healthz", id="one")
    started = json.dumps(json.loads(line) | {"stage": "ResponseStarted"}) + "\n"
    received = json.dumps(json.loads(line) | {"stage": "RequestReceived", "auditID": "zero"}) + "\n"
    nobody = json.dumps(json.loads(line) | {"user": {}, "auditID": "none"}) + "\n"
    log.write_text(received + started + line + nobody + '{"kind": "Pod"}\n{"kind": "Eve')
    counts = Counts()
    assert [found.id for found in read([log], counts)] == ["one"]
    assert (counts.unreadable, counts.undecided, counts.lines) == (2, 1, 6)
    assert counts.places == [f"{log}:5", f"{log}:6"]
