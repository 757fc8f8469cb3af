"""One real little provider per rule: each breaks its own rule, and no other."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from ostiary.conformance.credential_provider import SAMPLE_TOKEN
from ostiary.conformance.credential_provider import check as check_with_clock
from ostiary.conformance.credential_provider_rules import RULES, ProviderEvidence, ProviderRun, RunPurpose, judge
from ostiary.conformance.findings import Report, Result
from ostiary.core.process import Ending
from ostiary.errors import ConfigurationError
from ostiary.wire.credential_provider import V1, V1BETA1, Request
from ostiary_gateway.testing import FakeClock

CANARY = "c4n4ry-c4n4ry-c4n4ry"
IMAGE = "registry.example.com/team/app"
KEY = "registry.example.com"

SCRIPT = """\
#!/bin/sh
cd {folder}
request=$(cat)
if [ -z "$request" ]; then
{empty}
fi
printf '%s\\n' "$request" >> requests
version=${{request#*'"apiVersion":"'}}
version=${{version%%'"'*}}
{before}
case "$request" in
*ostiary-check.invalid*) sed "s|@VERSION@|$version|" unknown;;
*) sed "s|@VERSION@|$version|" answer;;
esac
{after}
"""


def response(auth: Any = None, **fields: Any) -> bytes:
    found = {
        "kind": "CredentialProviderResponse",
        "apiVersion": "@VERSION@",
        "cacheKeyType": "Registry",
        "cacheDuration": "10m",
        "auth": auth if auth is not None else {KEY: {"username": "robot", "password": CANARY}},
        **fields,
    }
    return json.dumps({name: value for name, value in found.items() if value is not None}).encode()


def keyed(key: str, **fields: Any) -> bytes:
    return response({key: {"username": "robot", "password": CANARY}}, **fields)


NOTHING = response({}, cacheKeyType="Image", cacheDuration="0s")


class Folder:
    """Where a test's provider lives."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def provider(
        self,
        answer: bytes | None = None,
        *,
        unknown: bytes = NOTHING,
        before: str = "",
        after: str = "",
        empty: str = "exit 1",
    ) -> list[str]:
        (self.path / "answer").write_bytes(answer if answer is not None else response())
        (self.path / "unknown").write_bytes(unknown)
        script = self.path / "provider"
        script.write_text(SCRIPT.format(folder=self.path, before=before, after=after, empty=empty))
        script.chmod(0o755)
        return [str(script)]

    @property
    def requests(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.path / "requests").read_text().splitlines()]


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path)


def check(command: list[str], **options: Any) -> Report:
    # By a clock that stands still, no run is slow, however slow this machine is.
    return check_with_clock(command, clock=FakeClock(), **options)


def broken(report: Report) -> dict[str, Result]:
    return {one.rule: one.result for one in report.findings if one.result in (Result.FAIL, Result.WARN)}


def test_a_provider_that_keeps_every_rule_passes_all_of_them(folder: Folder) -> None:
    report = check(folder.provider(), image=f"{IMAGE}:1.0")
    assert {one.result for one in report.findings} == {Result.PASS}
    assert (report.ok, report.runs) == (True, 6)
    assert [one.rule for one in report.findings] == [rule.id for rule in RULES]


def test_it_is_asked_for_the_repository_in_every_version_and_once_with_a_token(folder: Folder) -> None:
    check(folder.provider(), image=f"{IMAGE}:1.0")
    asked = [(one["apiVersion"].rpartition("/")[2], one["image"]) for one in folder.requests]
    assert asked[:3] == [("v1", IMAGE), ("v1beta1", IMAGE), ("v1alpha1", IMAGE)]
    assert [one.get("serviceAccountToken") for one in folder.requests] == [None] * 4 + [SAMPLE_TOKEN.reveal()]


ONE_RULE_EACH: dict[str, tuple[dict[str, Any], Result]] = {
    "other-versions": ({"before": 'case "$version" in */v1) ;; *) exit 1;; esac'}, Result.WARN),
    "prints-an-answer": ({"answer": b""}, Result.FAIL),
    "nothing-around": ({"answer": b"hello\n" + response()}, Result.FAIL),
    "one-object-on-stdout": ({"answer": b"kind: CredentialProviderResponse\n"}, Result.FAIL),
    "api-version": ({"answer": response(apiVersion=f"{V1}alpha9")}, Result.FAIL),
    "kind": ({"answer": response(kind="Secret")}, Result.FAIL),
    "known-fields": ({"answer": response(cachekeytype="x")}, Result.FAIL),
    "fields-once": ({"answer": response()[:-1] + b',"cacheDuration":"1m"}'}, Result.FAIL),
    "cache-key-type": ({"answer": response(cacheKeyType="ServiceAccount")}, Result.FAIL),
    "cache-duration": ({"answer": response(cacheDuration=600)}, Result.FAIL),
    "auth-shape": ({"answer": response([])}, Result.FAIL),
    "field-types": ({"answer": response({KEY: {"username": 1, "password": CANARY}})}, Result.FAIL),
    "plausible-cache-duration": ({"answer": response(cacheDuration="21.6µs")}, Result.FAIL),
    "bounded-cache-duration": ({"answer": response(cacheDuration="25h")}, Result.WARN),
    "has-credential": ({"answer": response({})}, Result.WARN),
    "keys-match": ({"answer": keyed("registry.example.com:443")}, Result.WARN),
    "registry-scope": ({"answer": keyed(f"{KEY}/team")}, Result.FAIL),
    "global-scope": ({"answer": response(cacheKeyType="Global")}, Result.WARN),
    "empty-answer-scope": ({"unknown": response({}, cacheKeyType="Global")}, Result.FAIL),
    "unknown-image": ({"unknown": keyed("*.invalid")}, Result.WARN),
    "empty-stdin": ({"empty": "exit 0"}, Result.WARN),
    "token-as-password": (
        {"answer": response({KEY: {"username": "r", "password": SAMPLE_TOKEN.reveal()}})},
        Result.WARN,
    ),
    "no-secret-on-stderr": ({"before": f"echo password is {CANARY} >&2"}, Result.FAIL),
    "output-size": ({"before": "head -c 1100000 /dev/zero"}, Result.FAIL),
}


@pytest.mark.parametrize("rule", ONE_RULE_EACH)
def test_a_provider_that_breaks_one_rule_is_told_of_that_one(folder: Folder, rule: str) -> None:
    parts, result = ONE_RULE_EACH[rule]
    report = check(folder.provider(**parts), image=IMAGE)
    assert broken(report) == {rule: result}
    (finding,) = (one for one in report.findings if one.rule == rule)
    assert finding.seen
    assert finding.fix
    assert CANARY not in repr(report)


def test_a_key_that_cannot_be_parsed_is_told_beside_one_that_can(folder: Folder) -> None:
    auth = {KEY: {"username": "a", "password": CANARY}, "bad key": {"username": "a", "password": CANARY}}
    assert broken(check(folder.provider(response(auth)), image=IMAGE)) == {"keys-parse": Result.WARN}


def test_an_exit_code_is_told_and_what_stands_behind_it_is_not_judged(folder: Folder) -> None:
    report = check(folder.provider(before="exit 3"), image=IMAGE, versions=[V1])
    assert broken(report) == {"exit-code": Result.FAIL}
    assert "3" in next(one.seen for one in report.findings if one.rule == "exit-code")
    skipped = {one.rule for one in report.findings if one.result is Result.SKIPPED}
    assert {"kind", "cache-key-type", "unknown-image"} <= skipped


def test_the_key_type_that_belongs_to_the_configuration_gets_its_own_hint(folder: Folder) -> None:
    report = check(folder.provider(response(cacheKeyType="ServiceAccount")), image=IMAGE)
    fix = next(one.fix for one in report.findings if one.rule == "cache-key-type")
    assert "cacheTypes of the configuration" in fix


def test_a_negative_duration_is_not_plausible(folder: Folder) -> None:
    report = check(folder.provider(response(cacheDuration="-1m")), image=IMAGE)
    assert broken(report) == {"plausible-cache-duration": Result.FAIL}


def test_one_that_hangs_is_ended_and_not_run_again(folder: Folder) -> None:
    os.mkfifo(folder.path / "never")
    report = check(folder.provider(before="read _ < never"), image=IMAGE, seconds=0.3)
    assert (broken(report), report.runs) == ({"ends-in-time": Result.FAIL}, 1)


def test_a_process_that_is_left_behind_with_stdout_is_found(folder: Folder) -> None:
    os.mkfifo(folder.path / "release")
    ours = os.open(folder.path / "release", os.O_RDWR)
    try:
        report = check(folder.provider(after="(read _ < release) 2>/dev/null &"), image=IMAGE, versions=[V1BETA1])
        assert broken(report) == {"leaves-nothing-behind": Result.FAIL}
    finally:
        os.write(ours, b"\n" * 8)
        os.close(ours)


@pytest.mark.parametrize("name", ["missing", "folder", "plain", "no-program"])
def test_what_cannot_be_started_is_told_and_nothing_else(tmp_path: Path, name: str) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "plain").write_text("")
    (tmp_path / "no-program").write_text("this begins with no #!")
    (tmp_path / "no-program").chmod(0o755)
    report = check([str(tmp_path / name)])
    assert broken(report) == {"starts": Result.FAIL}
    assert report.count(Result.SKIPPED) == len(RULES) - 1


def test_a_check_of_nothing_is_refused(folder: Folder) -> None:
    with pytest.raises(ConfigurationError):
        check([])
    with pytest.raises(ConfigurationError):
        check(folder.provider(), versions=["v7"])


def test_variables_of_the_configuration_reach_it(folder: Folder) -> None:
    command = folder.provider(before='[ "$REGION" = north ] || exit 4')
    assert check(command, image=IMAGE, env={"REGION": "north"}).ok
    assert not check(command, image=IMAGE).ok


@pytest.mark.parametrize(("seconds", "result"), [(5.0, Result.PASS), (5.1, Result.WARN)])
def test_a_slow_answer_is_a_warning(clock: FakeClock, seconds: float, result: Result) -> None:
    run = ProviderRun(Request(IMAGE), RunPurpose.FIRST, Ending.EXITED, 0, seconds, clock.now(), stdout=b"{}")
    assert next(one.result for one in judge(ProviderEvidence((run,))) if one.rule == "is-quick") is result
