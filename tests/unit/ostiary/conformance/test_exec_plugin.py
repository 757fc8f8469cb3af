"""One real little plugin per rule: each breaks its own rule, and no other."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import trustme
from hypothesis import example, given
from hypothesis import strategies as st

from ostiary.conformance.exec_plugin import check
from ostiary.conformance.exec_rules import RULES, PluginEvidence, PluginRun, judge
from ostiary.conformance.findings import Report, Result
from ostiary.core.process import Ending
from ostiary.errors import ConfigurationError
from ostiary.wire.client_authentication import (
    API_VERSIONS,
    V1,
    V1ALPHA1,
    V1BETA1,
    AnswerRefused,
    ClusterInfo,
    decode_answer,
)
from ostiary_gateway.testing import FakeClock

CANARY = "c4n4ry-c4n4ry-c4n4ry"
NOW = datetime(2026, 1, 1, tzinfo=UTC)
EXPIRY = "2026-01-01T02:00:00Z"
STATUS = {"token": CANARY, "expirationTimestamp": EXPIRY}

SCRIPT = """\
#!/bin/sh
cd {folder}
version=$(printf %s "$KUBERNETES_EXEC_INFO" | sed 's/.*"apiVersion":"\\([^"]*\\)".*/\\1/')
echo "$version" >> runs
{before}
LC_ALL=C sed "s|@VERSION@|$version|" answer
{after}
"""


class Folder:
    """Where a test's plugin lives."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def plugin(self, stdout: bytes, *, before: str = "", after: str = "") -> list[str]:
        """A shell script that prints *stdout*, with @VERSION@ replaced by what it was asked for."""
        (self.path / "answer").write_bytes(stdout)
        script = self.path / "plugin"
        script.write_text(SCRIPT.format(folder=self.path, before=before, after=after))
        script.chmod(0o755)
        return [str(script)]

    @property
    def runs(self) -> int:
        return len((self.path / "runs").read_text().splitlines())


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path)


def answer(status: Any = STATUS, **top: Any) -> bytes:
    fields = {"kind": "ExecCredential", "apiVersion": "@VERSION@", "status": status, **top}
    return json.dumps({name: value for name, value in fields.items() if value is not None}).encode()


def status(**fields: Any) -> bytes:
    return answer({**STATUS, **fields})


def judged(command: list[str], **options: Any) -> Report:
    report = check(command, **{"clock": FakeClock(NOW), **options})
    assert CANARY not in repr(report)
    return report


def broken(report: Report) -> dict[str, Result]:
    return {finding.rule: finding.result for finding in report.findings if finding.result in (Result.FAIL, Result.WARN)}


def seen(report: Report, rule: str) -> str:
    return next(finding.seen for finding in report.findings if finding.rule == rule)


# --- plugins that are as they should be ---


def test_a_good_plugin_breaks_no_rule_and_is_run_once_per_way_to_ask_and_once_at_a_terminal(folder: Folder) -> None:
    report = judged(folder.plugin(answer()))
    assert broken(report) == {}
    assert report.ok
    assert report.runs == 4
    assert folder.runs == 5


def test_a_good_certificate_breaks_no_rule(
    folder: Folder, client_certificate: Callable[[str], tuple[str, str]]
) -> None:
    chain, key = client_certificate("dev")
    report = judged(folder.plugin(status(token=None, clientCertificateData=chain, clientKeyData=key)))
    assert broken(report) == {}
    assert report.count(Result.SKIPPED) == 0


def test_v1alpha1_can_be_judged_and_has_no_cluster_to_be_told_of(folder: Folder) -> None:
    report = judged(folder.plugin(answer()), versions=[V1ALPHA1])
    assert broken(report) == {}
    assert report.runs == 1


def test_a_plugin_in_python_with_arguments_and_environment_is_judged(tmp_path: Path) -> None:
    script = tmp_path / "plugin.py"
    script.write_text(
        "import json, os, sys\n"
        "asked = json.loads(os.environ['KUBERNETES_EXEC_INFO'])\n"
        "assert sys.argv[1:] == ['--quiet'] and os.environ['REGION'] == 'north'\n"
        "assert asked['spec']['interactive'] is False and sys.stdin.read() == ''\n"
        "asked['status'] = {'token': 'a-token', 'expirationTimestamp': '2026-01-01T02:00:00Z'}\n"
        "print(json.dumps(asked))\n"
    )
    report = judged([sys.executable, str(script), "--quiet"], env={"REGION": "north"})
    assert broken(report) == {}


# --- plugins that break one rule each ---

Case = Callable[[Folder], list[str]]


def printing(stdout: bytes) -> Case:
    return lambda folder: folder.plugin(stdout)


def doing(before: str, after: str = "") -> Case:
    return lambda folder: folder.plugin(answer(), before=before, after=after)


def unexecutable(folder: Folder) -> list[str]:
    command = folder.plugin(answer())
    os.chmod(command[0], 0o644)
    return command


YAML = f"apiVersion: @VERSION@\nkind: ExecCredential\nstatus:\n  token: {CANARY}\n  expirationTimestamp: '{EXPIRY}'\n"
TOLD_OF_CLUSTER = 'case "$KUBERNETES_EXEC_INFO" in *\'"cluster"\'*)'
KEY_TWICE = answer().replace(b'"token"', b'"token": "first", "token"')

BROKEN: dict[str, list[Case]] = {
    "starts": [lambda folder: ["no-such-plugin"], lambda folder: ["./no/such"], unexecutable],
    "exit-code": [doing("exit 3"), doing("kill -9 $$"), doing('[ "${version##*/}" = v1 ] || exit 1')],
    "works-with-cluster-info": [doing(f"{TOLD_OF_CLUSTER} exit 1 ;; esac")],
    "works-without-cluster-info": [doing(f"{TOLD_OF_CLUSTER} ;; *) exit 1 ;; esac")],
    "needs-no-stdin": [doing("read line || exit 1"), doing("read line || exit 0")],
    "asks-nobody": [doing('printf "password: " > /dev/tty && read line < /dev/tty'), doing("echo hello > /dev/tty")],
    "output-size": [doing("head -c 2000000 /dev/zero")],
    "prints-an-answer": [printing(b""), printing(b" \n")],
    "is-utf-8": [printing(answer().replace(b"{", b'{"note": "\xff", ', 1))],
    "has-no-bom": [printing(b"\xef\xbb\xbf" + answer())],
    "no-text-before": [printing(b"Opening {your} browser...\n" + answer())],
    "no-text-after": [printing(answer() + b"\nbye"), printing(answer() + b"}")],
    "one-object-on-stdout": [
        printing(answer() * 2),
        printing(b"[" + answer() + b"]"),
        printing(CANARY.encode()),
        printing(answer()[:-1]),
    ],
    "is-json": [printing(YAML.encode())],
    "no-duplicate-keys": [printing(KEY_TWICE)],
    "has-kind": [printing(answer(kind=None)), printing(answer(kind=""))],
    "kind": [printing(answer(kind="Secret"))],
    "dialect": [],
    "api-version": [printing(answer(apiVersion=V1)), printing(answer(apiVersion=None))],
    "status": [printing(answer(status=None)), printing(answer(CANARY))],
    "field-names": [printing(status(Token=CANARY)), printing(status(client_key_data="")), printing(answer(STATUS="x"))],
    "field-types": [printing(status(token=5)), printing(status(clientKeyData=[]))],
    "has-credential": [printing(status(token="")), printing(status(token=None))],
    "certificate-and-key": [printing(status(clientCertificateData="c")), printing(status(clientKeyData=CANARY))],
    "certificate-pair": [printing(status(clientCertificateData="c", clientKeyData=CANARY))],
    "token-is-header-safe": [printing(status(token=CANARY + "\n")), printing(status(token="a b"))],
    "expiration-timestamp": [printing(status(expirationTimestamp="soon")), printing(status(expirationTimestamp=5))],
    "portable-expiry": [
        printing(status(expirationTimestamp="2026-01-01T02:00:00.5Z")),
        printing(status(expirationTimestamp="2026-01-01T02:00:00+01:00")),
    ],
    "has-expiry": [printing(status(expirationTimestamp=None))],
    "not-expired": [
        printing(status(expirationTimestamp="2026-01-01T00:00:00Z")),
        printing(status(expirationTimestamp="2006-01-02T15:04:05Z")),
    ],
    "lives-long-enough": [printing(status(expirationTimestamp="2026-01-01T00:04:59Z"))],
    "no-secret-on-stderr": [doing('sed \'s/.*"token": "//\' answer >&2')],
    "runs-agree": [doing(f"{TOLD_OF_CLUSTER} sed -i 's/{EXPIRY}//; s/expirationT/t/' answer ;; esac")],
}
# These need more than a script, and have tests of their own.
OF_THEIR_OWN = {"ends-in-time", "is-quick", "leaves-nothing-behind", "certificate-valid-now"}
CASES = [pytest.param(rule, case, id=f"{rule}-{n}") for rule, cases in BROKEN.items() for n, case in enumerate(cases)]


@pytest.mark.parametrize(("rule", "case"), CASES)
def test_a_plugin_that_breaks_one_rule_fails_that_rule_alone_and_is_told_the_remedy(
    rule: str, case: Case, folder: Folder
) -> None:
    """E68."""
    severity = next(known.severity for known in RULES if known.id == rule)
    report = judged(case(folder))
    # A token without an expiry in one run and not in another is two observations of one change.
    expected = {rule: severity} if rule != "runs-agree" else {rule: severity, "has-expiry": Result.WARN}
    assert broken(report) == expected
    assert report.ok == (severity is Result.WARN)
    finding = next(found for found in report.findings if found.rule == rule)
    assert finding.seen
    assert finding.fix


def test_every_rule_has_a_plugin_that_breaks_it() -> None:
    assert {rule.id for rule in RULES} == BROKEN.keys() | OF_THEIR_OWN
    assert len({rule.id for rule in RULES}) == len(RULES)


def test_a_plugin_that_does_not_end_is_ended_and_not_run_again(folder: Folder) -> None:
    os.mkfifo(folder.path / "fifo")
    report = judged(folder.plugin(answer(), before="read line < fifo"), seconds=0.3)
    assert broken(report) == {"ends-in-time": Result.FAIL}
    assert report.runs == 1


def test_a_slow_plugin_is_told_by_the_clock(folder: Folder) -> None:
    class Slow(FakeClock):
        def monotonic(self) -> float:
            self.advance(6)
            return super().monotonic()

    report = judged(folder.plugin(answer()), clock=Slow(NOW))
    assert broken(report) == {"is-quick": Result.WARN}
    assert seen(report, "is-quick") == "it took 6.0 s"


@contextmanager
def a_fifo(path: Path) -> Iterator[Path]:
    """A pipe with a name; who reads from it waits until the block ends."""
    os.mkfifo(path)
    held = os.open(path, os.O_RDWR)
    try:
        yield path
    finally:
        os.write(held, b"\n" * 64)
        os.close(held)


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="only /proc shows who holds a pipe")
@pytest.mark.parametrize("start", ["(read line < fifo) &", "setsid sh -c 'read line < fifo' &"])
def test_a_process_that_is_left_behind_with_stdout_is_found(folder: Folder, start: str) -> None:
    with a_fifo(folder.path / "fifo"):
        report = judged(folder.plugin(answer(), before=start))
    assert broken(report) == {"leaves-nothing-behind": Result.FAIL}


def test_a_process_that_is_left_behind_without_stdout_harms_nobody(folder: Folder) -> None:
    with a_fifo(folder.path / "fifo"):
        report = judged(folder.plugin(answer(), before="(read line < fifo) > /dev/null 2>&1 &"))
    assert broken(report) == {}


@pytest.mark.parametrize(
    ("begins", "ends", "said"),
    [
        (datetime(2020, 1, 1), datetime(2025, 1, 1), "not valid any more"),
        (datetime(2027, 1, 1), datetime(2028, 1, 1), "not valid yet"),
    ],
)
def test_a_certificate_that_is_not_valid_now_is_told(
    folder: Folder, ca: trustme.CA, begins: datetime, ends: datetime, said: str
) -> None:
    """E50."""
    leaf = ca.issue_cert("dev@example.test", not_before=begins, not_after=ends)
    chain, key = leaf.cert_chain_pems[0].bytes().decode(), leaf.private_key_pem.bytes().decode()
    report = judged(folder.plugin(status(clientCertificateData=chain, clientKeyData=key)))
    assert broken(report) == {"certificate-valid-now": Result.WARN}
    assert said in seen(report, "certificate-valid-now")


# --- what is said ---


def test_it_is_said_which_way_of_asking_went_wrong(folder: Folder) -> None:
    report = judged(folder.plugin(answer(apiVersion=V1)))
    assert seen(report, "api-version") == (
        f"asked for v1beta1: it was asked for {V1BETA1} and answered with {V1}; "
        f"asked for v1beta1 with cluster info: it was asked for {V1BETA1} and answered with {V1}"
    )
    assert broken(judged(folder.plugin(answer(apiVersion=V1)), versions=[V1])) == {}


def test_a_failing_plugin_that_uses_the_terminal_is_told_both(folder: Folder) -> None:
    report = judged(folder.plugin(answer(), before="echo hello > /dev/tty || exit 1"))
    assert broken(report) == {"exit-code": Result.FAIL, "asks-nobody": Result.FAIL}


def test_several_mistakes_are_all_told(folder: Folder) -> None:
    report = judged(folder.plugin(answer({"token": "a b", "clientKeyData": CANARY}, kind=None)))
    assert broken(report) == {
        "has-kind": Result.WARN,
        "certificate-and-key": Result.FAIL,
        "token-is-header-safe": Result.FAIL,
    }


def test_a_private_key_on_stderr_is_found_too(
    folder: Folder, client_certificate: Callable[[str], tuple[str, str]]
) -> None:
    chain, key = client_certificate("dev")
    (folder.path / "key").write_text(key)
    command = folder.plugin(status(clientCertificateData=chain, clientKeyData=key), before="cat key >&2")
    assert broken(judged(command)) == {"no-secret-on-stderr": Result.FAIL}


def test_the_plugin_is_told_of_the_given_cluster(folder: Folder) -> None:
    command = folder.plugin(answer(), before='printf %s "$KUBERNETES_EXEC_INFO" >> infos')
    judged(command, cluster=ClusterInfo("https://mine.example"))
    assert "https://mine.example" in (folder.path / "infos").read_text()


@pytest.mark.parametrize("options", [{"command": []}, {"versions": []}, {"versions": ["v1"]}])
def test_nothing_to_check_is_an_error(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        check(**{"command": ["true"], **options})


# --- the rules and the decoder agree ---

VALUES: st.SearchStrategy[Any] = st.sampled_from([None, "", "x", "x y", 5, [], EXPIRY, "soon", True])
OBJECTS = st.fixed_dictionaries(
    {},
    optional={
        "kind": st.sampled_from(["ExecCredential", "ExecCredentials", "Pod", None, 5]),
        "apiVersion": st.sampled_from([V1, V1BETA1, "v1", None, 5]),
        "status": VALUES
        | st.dictionaries(st.sampled_from(["token", "Token", "clientKeyData", "expirationTimestamp"]), VALUES),
        "token": VALUES,
    },
)
NOISE = st.sampled_from([b"", b" ", b"x", b"{", b"}", b"\xff", b"\xef\xbb\xbf", b"{}", b"[", b"# "])


def run_that_printed(stdout: bytes, version: str) -> PluginRun:
    return PluginRun(version, False, Ending.EXITED, 0, seconds=0, ended_at=NOW, stdout=stdout, stderr=b"")


@given(NOISE, OBJECTS, NOISE, st.sampled_from(API_VERSIONS))
@example(b"", {"apiVersion": V1, "status": STATUS}, b"", V1)
@example(b"{}", {}, b"", V1)
def test_a_rule_fails_exactly_if_the_decoder_refuses(
    before: bytes, found: dict[str, Any], after: bytes, version: str
) -> None:
    stdout = before + json.dumps(found).encode() + after
    findings = judge(PluginEvidence((run_that_printed(stdout, version),), needs_stdin=False))
    assert any(finding.result is Result.FAIL for finding in findings) == is_refused(stdout, version)


@given(st.binary(max_size=100))
def test_whatever_a_plugin_prints_is_judged(stdout: bytes) -> None:
    findings = judge(PluginEvidence((run_that_printed(stdout, V1),)))
    assert [finding.rule for finding in findings] == [rule.id for rule in RULES]


def is_refused(stdout: bytes, version: str) -> bool:
    try:
        decode_answer(stdout, api_version=version)
    except AnswerRefused:
        return True
    return False


# --- what a plugin that failed says about it ---


def test_a_plugin_that_fails_is_heard_and_what_may_be_a_secret_is_not(folder: Folder) -> None:
    said = f"cannot reach https://user:{CANARY}@login.test; token={CANARY}; see $REGION"
    command = folder.plugin(answer(), before=f"echo {CANARY}; echo '{said}' >&2; echo \"$REGION\" >&2; exit 3")
    report = judged(command, env={"REGION": "north-c4n4ry"})
    assert "cannot reach https://***@login.test; token=***" in report.stderr
    assert "c4n4ry" not in report.stderr


def test_of_much_only_the_end_is_told(folder: Folder) -> None:
    command = folder.plugin(answer(), before="yes nothing new | head -n 5000 >&2; echo the reason >&2; exit 1")
    assert len(report := judged(command).stderr) < 2100
    assert report.endswith("the reason")


def test_a_plugin_that_works_is_not_quoted(folder: Folder) -> None:
    assert judged(folder.plugin(answer(), before="echo working on it >&2")).stderr == ""


# --- the dialect of 2018 ---


def proposed(**fields: Any) -> bytes:
    return json.dumps({"kind": "ExecCredentials", "apiVersion": "@VERSION@", "token": CANARY, **fields}).encode()


def test_a_plugin_of_2018_is_asked_in_its_own_words_and_told_of_a_rejection(folder: Folder) -> None:
    """F7, F28."""
    report = judged(
        folder.plugin(
            proposed(expiry=int(NOW.timestamp()) + 3600), before='printf "%s" "$KUBERNETES_EXEC_INFO" >> infos'
        ),
        as_proposed=True,
    )
    assert broken(report) == {}
    first, second = map(json.loads, (folder.path / "infos").read_text().splitlines()[:2])
    assert first == {"kind": "ExecInfo", "apiVersion": V1ALPHA1}
    assert second["response"]["code"] == 401


def test_a_plugin_that_answers_a_question_of_2018_in_the_shipped_words_fails_the_dialect(folder: Folder) -> None:
    assert broken(judged(folder.plugin(answer()), as_proposed=True)) == {"dialect": Result.FAIL}
