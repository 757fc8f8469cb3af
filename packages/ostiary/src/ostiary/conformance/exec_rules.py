"""The rules of the exec plugin protocol, each as a pure function of the collected evidence.

`exec_plugin.check` runs a plugin and collects `PluginEvidence`; every rule turns it into one `ConformanceFinding`. A
broken rule describes what was seen and how to fix it, and never quotes the plugin's output. A rule that depends on a
broken one is skipped, so that each error is reported once.

FAIL is what client-go rejects or suffers from; WARN is what it accepts and other clients do not.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import cached_property
from itertools import combinations

from ostiary.conformance.findings import (
    ConformanceFinding,
    NothingToCheck,
    ProgramRun,
    Result,
    Rule,
    Wrong,
    any_run,
    check_exit,
    check_output_size,
    check_prints,
    check_speed,
    check_start,
    check_time_limit,
    each,
    ended_in_time,
    ended_well,
    findings,
    wrong_by,
    wrong_if,
)
from ostiary.core.process import Ending
from ostiary.core.tls import parse_certificate, read_chain
from ostiary.model import ClientCertificate
from ostiary.wire.client_authentication import (
    PROPOSAL_ANSWER_KIND,
    AnswerRefused,
    ExecAnswer,
    answer_fields,
    decode_answer,
    refusals,
)

# Evidence. A `PluginRun` stores the bytes that the plugin printed, and decodes them on demand, like a client does.


@dataclass(frozen=True)
class PluginRun(ProgramRun):
    """One run of the plugin: its input, how it ended, and its output."""

    api_version: str
    with_cluster: bool
    ending: Ending
    exit_code: int
    seconds: float
    ended_at: datetime
    stdout: bytes = field(repr=False)
    stderr: bytes = field(repr=False)
    as_proposed: bool = False

    @property
    def asked_for(self) -> str:
        version = self.api_version.rpartition("/")[2]
        how = " with cluster info" if self.with_cluster else " as proposed in 2018" if self.as_proposed else ""
        return f"asked for {version}{how}"

    @cached_property
    def text(self) -> str:
        """Return stdout, with replacement characters for invalid UTF-8 as in client-go."""
        return self.stdout.decode("utf-8-sig", "replace")

    @cached_property
    def is_utf8(self) -> bool:
        try:
            self.stdout.decode("utf-8")
        except UnicodeDecodeError:
            return False
        return True

    @cached_property
    def fields(self) -> Mapping[str, object] | None:
        """Return the object that it printed; None if it cannot be determined."""
        if not self.printed:
            return None
        try:
            return answer_fields(self.stdout)
        except AnswerRefused:
            return None

    @cached_property
    def broken(self) -> Mapping[str, AnswerRefused]:
        """Return the broken rules of the output; of two errors under one rule, the first."""
        broken: dict[str, AnswerRefused] = {}
        for refusal in refusals(self.stdout, api_version=self.api_version):
            broken.setdefault(refusal.rule, refusal)
        return broken

    @cached_property
    def answer(self) -> ExecAnswer | None:
        if self.fields is None or self.broken:
            return None
        return decode_answer(self.stdout, api_version=self.api_version)

    @cached_property
    def certificate(self) -> ClientCertificate | None:
        """Return the client certificate; raises `ValueError` if certificate and key are not a matching pair."""
        if self.answer is None or self.answer.certificate_pem is None:
            return None
        if self.answer.key_address is not None:
            # Do not open the key itself, which may require a PIN.
            return read_chain(self.answer.certificate_pem)
        if self.answer.key_pem is None:
            return None
        return parse_certificate(self.answer.certificate_pem, self.answer.key_pem.reveal())


@dataclass(frozen=True, slots=True)
class PluginEvidence:
    """Everything that was seen of a plugin. None stands for what could not be observed."""

    runs: tuple[PluginRun, ...] = ()
    start_error: str | None = None
    needs_stdin: bool | None = None
    asked_on_terminal: bool | None = None
    left_something_behind: bool | None = None


# Rules about stdout: one object, each key once, and nothing around it.


def _object_at(text: str) -> tuple[str, object, str] | None:
    """Return the text before the first JSON object in *text*, the object, and the text after it."""
    start = text.find("{")
    while start >= 0:
        try:
            value, end = json.JSONDecoder().raw_decode(text, start)
            return text[:start].strip(), value, text[end:].strip()
        except (ValueError, RecursionError):
            start = text.find("{", start + 1)
    return None


def _surroundings(run: PluginRun) -> tuple[str, str] | None:
    """Return the text around the JSON object, if there is any."""
    if run.fields is not None:
        return None
    parts = _object_at(run.text)
    if parts is None or not _looks_like_an_answer(parts[1]):
        return None
    before, _, after = parts
    # Another object is not surrounding text: it is unclear which of the two is the credential.
    return None if after.startswith(("{", "[")) or before.endswith("[") else (before, after)


def _looks_like_an_answer(value: object) -> bool:
    return isinstance(value, dict) and ("status" in value or "apiVersion" in value or "kind" in value)


def check_one_object(run: PluginRun) -> Wrong | None:
    if run.fields is not None or _surroundings(run) is not None:
        return None
    return Wrong(run.broken["one-object-on-stdout"].cause)


def check_before(run: PluginRun) -> Wrong | None:
    around = _surroundings(run)
    return wrong_if(around is not None and bool(around[0]), "there is text before the JSON object")


def check_after(run: PluginRun) -> Wrong | None:
    around = _surroundings(run)
    return wrong_if(around is not None and bool(around[1]), "there is text after the JSON object")


def check_duplicates(run: PluginRun) -> Wrong | None:
    repeated = False

    def note(pairs: list[tuple[str, object]]) -> dict[str, object]:
        nonlocal repeated
        by_key = dict(pairs)
        repeated = repeated or len(by_key) != len(pairs)
        return by_key

    try:
        json.loads(run.text, object_pairs_hook=note)
    except (ValueError, RecursionError):
        # After a byte order mark it is parsed as YAML, which is more lenient.
        raise NothingToCheck from None
    return wrong_if(repeated, "duplicate key in an object")


BOM = b"\xef\xbb\xbf"
SLOW_SECONDS = 5.0
SHORT_LIFE = timedelta(minutes=5)
# A shorter token may occur in any sentence by chance.
SHORTEST_SECRET = 6

TOP_FIELDS = ("apiVersion", "kind", "status")
STATUS_FIELDS = ("token", "clientCertificateData", "clientKeyData", "clientKeyAddress", "expirationTimestamp")
PROPOSED_FIELDS = (
    "apiVersion",
    "kind",
    "token",
    "clientCertificateData",
    "clientKeyData",
    "clientKeyAddress",
    "expiry",
)
PORTABLE_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", re.ASCII)


Judgement = Callable[[PluginEvidence], Wrong | None]
RunJudgement = Callable[[PluginRun], Wrong | None]


def judge(evidence: PluginEvidence) -> tuple[ConformanceFinding, ...]:
    """Return one finding per rule, in the order of `RULES`."""
    return findings(RULES, evidence, started=evidence.start_error is None)


# --- runs that a rule applies to ---


def _has_printed(run: PluginRun) -> bool:
    return run.printed


def _is_object(run: PluginRun) -> bool:
    return run.fields is not None


def _is_json(run: PluginRun) -> bool:
    return run.fields is not None and run.text.lstrip().startswith("{")


def _has_status(run: PluginRun) -> bool:
    return run.fields is not None and "status" not in run.broken


def _has_parts(run: PluginRun) -> bool:
    return _has_status(run) and not run.broken.keys() & {"field-types", "expiration-timestamp"}


def _is_usable(run: PluginRun) -> bool:
    return run.answer is not None


def _has_certificate(run: PluginRun) -> bool:
    return run.answer is not None and run.answer.certificate_pem is not None


def _has_good_certificate(run: PluginRun) -> bool:
    return _has_certificate(run) and _check_certificate(run) is None


def _has_expiry(run: PluginRun) -> bool:
    return run.answer is not None and run.answer.expires_at is not None


def _lives(run: PluginRun) -> bool:
    return _has_expiry(run) and _check_lives(run) is None


# --- process ---


def _exit_code(evidence: PluginEvidence) -> Wrong | None:
    # If a run fails only with, or only without cluster info, the rules about cluster info report it.
    to_blame = {id(run) for pair in _pairs(evidence) if pair[0].ended_well != pair[1].ended_well for run in pair}
    return each(lambda run: ended_in_time(run) and id(run) not in to_blame, check_exit)(evidence)


def _pairs(evidence: PluginEvidence) -> Iterator[tuple[PluginRun, PluginRun]]:
    """Yield (run without, run with cluster info) for every version that was tried both ways, if both ended in time."""
    for first, second in combinations(filter(ended_in_time, evidence.runs), 2):
        if first.api_version == second.api_version and first.with_cluster != second.with_cluster:
            yield (second, first) if first.with_cluster else (first, second)


def _cluster_info(spoils: Callable[[PluginRun, PluginRun], bool], seen: str) -> Judgement:
    def judge_evidence(evidence: PluginEvidence) -> Wrong | None:
        pairs = [pair for pair in _pairs(evidence) if pair[0].ended_well or pair[1].ended_well]
        if not pairs:
            raise NothingToCheck
        return wrong_if(any(spoils(*pair) for pair in pairs), seen)

    return judge_evidence


def _if(look: Callable[[PluginEvidence], bool | None], seen: str) -> Judgement:
    def judge_evidence(evidence: PluginEvidence) -> Wrong | None:
        is_broken = look(evidence)
        if is_broken is None:
            raise NothingToCheck
        return wrong_if(is_broken, seen)

    return judge_evidence


# --- object ---


def _wire(rule: str) -> RunJudgement:
    """Return a rule that the decoder itself checks."""
    return lambda run: wrong_by(run.broken.get(rule))


def _check_dialect(run: PluginRun) -> Wrong | None:
    kind = (run.fields or {}).get("kind")
    message = f"it was asked as proposed in 2018, and its answer is no {PROPOSAL_ANSWER_KIND}"
    return wrong_if(run.as_proposed and kind != PROPOSAL_ANSWER_KIND, message)


def _check_has_kind(run: PluginRun) -> Wrong | None:
    return wrong_if((run.fields or {}).get("kind") in (None, ""), "its answer has no kind")


def _check_names(run: PluginRun) -> Wrong | None:
    fields = run.fields or {}
    status = fields.get("status")
    resembled = [*_names_resembled(fields, PROPOSED_FIELDS if run.as_proposed else TOP_FIELDS)]
    if isinstance(status, dict):
        resembled += _names_resembled(status, STATUS_FIELDS)
    # The known name is shown, never the one that was printed.
    return wrong_if(bool(resembled), f"a field looks like {' and '.join(resembled)}, but is spelled differently")


def _names_resembled(fields: Iterable[object], known: Iterable[str]) -> Iterator[str]:
    by_letters = {_letters(name): name for name in known}
    for name in map(str, fields):
        known_name = by_letters.get(_letters(name))
        if known_name is not None and known_name != name:
            yield known_name


def _letters(name: str) -> str:
    return re.sub(r"[\W_]", "", name).lower()


# --- credential ---


def _check_certificate(run: PluginRun) -> Wrong | None:
    try:
        return None if run.certificate else Wrong("there is no certificate")
    except ValueError as error:
        return Wrong(str(error))


def _check_validity(run: PluginRun) -> Wrong | None:
    certificate = run.certificate
    assert certificate is not None
    if certificate.not_before is not None and run.ended_at < certificate.not_before:
        return Wrong("the client certificate is not valid yet")
    ended = certificate.not_after is not None and run.ended_at > certificate.not_after
    return wrong_if(ended, "the client certificate is not valid any more")


def _remaining(run: PluginRun) -> timedelta:
    assert run.answer is not None
    assert run.answer.expires_at is not None
    return run.answer.expires_at - run.ended_at


def _check_lives(run: PluginRun) -> Wrong | None:
    past = -_remaining(run).total_seconds()
    return wrong_if(past >= 0, f"it had already expired {past:.0f} s before it came")


def _check_life(run: PluginRun) -> Wrong | None:
    remaining = _remaining(run)
    return wrong_if(remaining < SHORT_LIFE, f"it expires in {remaining.total_seconds():.0f} s")


def _check_form(run: PluginRun) -> Wrong | None:
    status = (run.fields or {}).get("status")
    timestamp = status.get("expirationTimestamp") if isinstance(status, dict) else None
    odd = isinstance(timestamp, str) and not PORTABLE_TIME.fullmatch(timestamp)
    return wrong_if(odd, "expirationTimestamp has a fraction of a second or an offset from UTC")


def _check_stderr(run: PluginRun) -> Wrong | None:
    stderr = run.stderr.decode("utf-8", "replace")
    return wrong_if(any(secret in stderr for secret in _secrets(run)), "a part of the credential is on stderr")


def _secrets(run: PluginRun) -> Iterator[str]:
    assert run.answer is not None
    for secret in (run.answer.token, run.answer.key_pem):
        for line in secret.reveal().splitlines() if secret else ():
            if len(line) >= SHORTEST_SECRET and not line.startswith("-----"):
                yield line


def _agree(evidence: PluginEvidence) -> Wrong | None:
    answers = [run.answer for run in evidence.runs if run.answer is not None]
    if len(answers) < 2:
        raise NothingToCheck
    shapes = {(answer.token is None, answer.certificate_pem is None, answer.expires_at is None) for answer in answers}
    return wrong_if(len(shapes) > 1, "a token, a certificate or an expiry came in one run and not in another")


FAIL, WARN = Result.FAIL, Result.WARN
_TO_STDERR = "print only the ExecCredential on stdout; write messages to stderr"

RULES: tuple[Rule[PluginEvidence], ...] = (
    Rule("starts", "the command can be started", FAIL,
         "give the path of a program, or a script that begins with #! and is executable (chmod +x)", check_start),
    Rule("ends-in-time", "it ends within the time limit", FAIL,
         "without a person it must end by itself: give its network calls time limits, and ask nobody",
         each(any_run, check_time_limit)),
    Rule("exit-code", "it ends with exit code 0", FAIL,
         "exit 0 with a credential; what it said on stderr is shown below", _exit_code),
    Rule("works-with-cluster-info", "it works with cluster info", FAIL,
         "with provideClusterInfo, spec.cluster is in KUBERNETES_EXEC_INFO: ignore it if you do not need it",
         _cluster_info(lambda plain, told: plain.ended_well and not told.ended_well,
                       "it fails only when KUBERNETES_EXEC_INFO holds spec.cluster")),
    Rule("works-without-cluster-info", "it works without cluster info", WARN,
         "say in its documentation that the kubeconfig must set provideClusterInfo: true",
         _cluster_info(lambda plain, told: told.ended_well and not plain.ended_well,
                       "it fails when KUBERNETES_EXEC_INFO holds no spec.cluster")),
    Rule("is-quick", f"it answers within {SLOW_SECONDS:g} s", WARN,
         "keep the credential in a cache of your own: every kubectl command waits for this",
         each(ended_well, check_speed(SLOW_SECONDS))),
    Rule("needs-no-stdin", "it works with nothing on stdin", FAIL,
         "stdin is /dev/null unless spec.interactive is true: do not read it",
         _if(lambda evidence: evidence.needs_stdin, "it works only when it can read lines from stdin")),
    Rule("asks-nobody", "it asks nobody when spec.interactive is false", FAIL,
         "use the terminal only if spec.interactive is true; else fail and say what to do",
         _if(lambda evidence: evidence.asked_on_terminal, "it used the terminal, although nobody may be there")),
    Rule("leaves-nothing-behind", "no child process keeps its stdout open", FAIL,
         "start helpers with stdout and stderr redirected: kubectl waits until stdout is closed by all",
         _if(lambda evidence: evidence.left_something_behind, "a child process still held stdout after it exited")),
    Rule("output-size", "it prints no more than a credential", FAIL, _TO_STDERR,
         each(ended_in_time, check_output_size)),
    Rule("prints-an-answer", "it prints something on stdout", FAIL,
         "print one ExecCredential object on stdout; a Python file with @exec_plugin must also call main()",
         each(ended_well, check_prints)),
    Rule("is-utf-8", "stdout is UTF-8", WARN, "print JSON in UTF-8, or in ASCII with escapes",
         each(_has_printed, lambda run: wrong_if(not run.is_utf8, "stdout holds bytes that are not UTF-8"))),
    Rule("has-no-bom", "stdout begins without a byte order mark", WARN, "write UTF-8 without its byte order mark",
         each(_has_printed, lambda run: wrong_if(run.stdout.startswith(BOM), "stdout begins with a byte order mark"))),
    Rule("no-text-before", "there is no text before the object", FAIL, _TO_STDERR, each(_has_printed, check_before)),
    Rule("no-text-after", "there is no text after the object", FAIL, _TO_STDERR, each(_has_printed, check_after)),
    Rule("one-object-on-stdout", "stdout is one object", FAIL, _TO_STDERR, each(_has_printed, check_one_object)),
    Rule("is-json", "the object is JSON", WARN, "print JSON: kubectl takes YAML, and other clients refuse it",
         each(_is_object, lambda run: wrong_if(not _is_json(run), "it is YAML"))),
    Rule("no-duplicate-keys", "there are no duplicate keys", WARN, "print each key once: clients use different ones",
         each(_is_json, check_duplicates)),
    Rule("has-kind", "it has a kind", WARN, 'print "kind": "ExecCredential": kubectl can do without, others cannot',
         each(_is_object, _check_has_kind)),
    Rule("kind", "its kind is ExecCredential", FAIL, "", each(_is_object, _wire("kind"))),
    Rule("dialect", "asked in the words of 2018, it answers in them", FAIL,
         'answer with "kind": "ExecCredentials", and token and expiry beside it',
         each(_is_object, _check_dialect)),
    Rule("api-version", "it answers in the apiVersion it was asked for", FAIL, "",
         each(_is_object, _wire("api-version"))),
    Rule("status", "it has a status", FAIL, "", each(_is_object, _wire("status"))),
    Rule("field-names", "field names are spelled exactly", WARN, "names are case-sensitive: token, clientKeyData, ...",
         each(_is_object, _check_names)),
    Rule("field-types", "the fields of status are strings", FAIL, "", each(_has_status, _wire("field-types"))),
    Rule("has-credential", "there is a token, or a certificate with its key", FAIL, "",
         each(_has_parts, _wire("has-credential"))),
    Rule("certificate-and-key", "certificate and key come together", FAIL, "",
         each(_has_parts, _wire("certificate-and-key"))),
    Rule("certificate-pair", "certificate and key are PEM and belong together", FAIL,
         "return a PEM certificate and the PEM key that belongs to it", each(_has_certificate, _check_certificate)),
    Rule("certificate-valid-now", "the certificate is valid now", WARN,
         "issue a new one, and compare this machine's clock with the authority's",
         each(_has_good_certificate, _check_validity)),
    Rule("token-is-header-safe", "the token fits into a header", FAIL, "",
         each(_has_parts, _wire("token-is-header-safe"))),
    Rule("expiration-timestamp", "expirationTimestamp is a time of RFC 3339", FAIL, "",
         each(_has_status, _wire("expiration-timestamp"))),
    Rule("portable-expiry", "expirationTimestamp is in whole seconds of UTC", WARN,
         "write it like 2030-01-31T12:00:00Z: some clients read no other form", each(_has_expiry, _check_form)),
    Rule("has-expiry", "it says when the credential expires", WARN,
         "fill status.expirationTimestamp: without it clients notice the expiry only when a request fails with 401",
         each(_is_usable, lambda run: wrong_if(not _has_expiry(run), "there is no expirationTimestamp"))),
    Rule("not-expired", "the credential has not expired when it comes", FAIL,
         "fetch a new one instead of a cached one, and compare the clocks", each(_has_expiry, _check_lives)),
    Rule("lives-long-enough", "it lives for five minutes or more", WARN,
         "issue credentials that live longer: several Python clients run the plugin again when five minutes are left",
         each(_lives, _check_life)),
    Rule("no-secret-on-stderr", "nothing of the credential is on stderr", FAIL,
         "print it only on stdout: stderr ends up in logs and on screens", each(_is_usable, _check_stderr)),
    Rule("runs-agree", "all runs answer with the same kind of credential", FAIL,
         "return the same kind of credential for every version, with and without cluster info", _agree),
)  # fmt: skip
