"""The rules of the credential provider protocol, each as a pure function of the collected evidence.

`credential_provider.check` runs a provider and collects `ProviderEvidence`; every rule turns it into one
`ConformanceFinding`. A provider's output is never quoted. FAIL is what the kubelet rejects or suffers from; WARN is
what it accepts, with surprising results.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import Enum
from functools import cached_property

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
from ostiary.core.duration import format_duration
from ostiary.core.process import Ending
from ostiary.core.yaml import parse
from ostiary.errors import ConfigurationError
from ostiary.registry.credentials import normalised_key
from ostiary.registry.image_matching import matches, why_not
from ostiary.registry.image_name import parse_address
from ostiary.wire.credential_provider import CacheKeyType, Request, Response, ResponseRefused, decode_response, refusals

# Evidence. A `ProviderRun` stores the bytes that the provider printed, and decodes them on demand, like the kubelet
# does.


class RunPurpose(Enum):
    """The purpose of a run. FIRST: the image and the version that the provider must support."""

    FIRST = "the first version"
    OTHER_VERSION = "another version"
    UNKNOWN_IMAGE = "an image it cannot know"
    WITH_TOKEN = "with a service account token"  # noqa: S105
    NOTHING = "nothing on stdin"


@dataclass(frozen=True)
class ProviderRun(ProgramRun):
    """One run of the provider: its input, how it ended, and its output."""

    request: Request
    purpose: RunPurpose
    ending: Ending
    exit_code: int
    seconds: float
    ended_at: datetime
    holds_stdout: bool | None = None
    stdout: bytes = field(default=b"", repr=False)
    stderr: bytes = field(default=b"", repr=False)

    @property
    def asked_for(self) -> str:
        if self.purpose in (RunPurpose.FIRST, RunPurpose.OTHER_VERSION):
            return f"asked for {self.request.api_version.rpartition('/')[2]}"
        return (
            f"asked {self.purpose.value}"
            if self.purpose is RunPurpose.WITH_TOKEN
            else f"asked for {self.purpose.value}"
        )

    @cached_property
    def broken(self) -> Mapping[str, ResponseRefused]:
        """Return the broken rules of the response; of two errors under one rule, the first."""
        broken: dict[str, ResponseRefused] = {}
        for refusal in refusals(self.stdout, self.request):
            broken.setdefault(refusal.rule, refusal)
        return broken

    @cached_property
    def response(self) -> Response | None:
        if not self.printed or self.broken:
            return None
        return decode_response(self.stdout, self.request, now=self.ended_at)

    @cached_property
    def keys(self) -> tuple[bytes, ...]:
        """Return the keys of the response in their normalized form, without those that cannot be parsed."""
        raw = self.response.auth if self.response is not None else ()
        return tuple(key for text in raw if (key := normalised_key(text)) is not None)


@dataclass(frozen=True, slots=True)
class ProviderEvidence:
    """Everything that was seen of a provider."""

    runs: tuple[ProviderRun, ...] = ()
    start_error: str | None = None

    def the(self, purpose: RunPurpose) -> ProviderRun:
        for run in self.runs:
            if run.purpose is purpose:
                return run
        raise NothingToCheck


SLOW_SECONDS = 5.0
LONG_CACHE = timedelta(hours=24)
SHORT_CACHE = timedelta(seconds=1)
# A shorter password may occur in any sentence by chance.
SHORTEST_SECRET = 6
SIBLING = "ostiary-check/sibling"


def judge(evidence: ProviderEvidence) -> tuple[ConformanceFinding, ...]:
    """Return one finding per rule, in the order of `RULES`."""
    return findings(RULES, evidence, started=evidence.start_error is None)


Judgement = Callable[[ProviderEvidence], Wrong | None]
RunJudgement = Callable[[ProviderRun], Wrong | None]
Applies = Callable[[ProviderRun], bool]


# --- runs that a rule applies to ---


def _first(check: RunJudgement, applies: Applies = any_run) -> Judgement:
    """Check only the run that must work."""
    return each(lambda run: run.purpose is RunPurpose.FIRST and applies(run), check)


def _was_given_a_request(run: ProviderRun) -> bool:
    return run.purpose is not RunPurpose.NOTHING


def _has_printed(run: ProviderRun) -> bool:
    return _was_given_a_request(run) and run.printed


def _is_object(run: ProviderRun) -> bool:
    return _has_printed(run) and "one-object-on-stdout" not in run.broken


def _is_usable(run: ProviderRun) -> bool:
    return _was_given_a_request(run) and run.response is not None


def _is_cached(run: ProviderRun) -> bool:
    return _is_usable(run) and run.response is not None and run.response.cache_duration is not None


def _has_auth(run: ProviderRun) -> bool:
    return _is_usable(run) and run.response is not None and bool(run.response.auth)


def _has_match(run: ProviderRun) -> bool:
    return _has_auth(run) and any(matches(key, run.request.image) for key in run.keys)


def _wire(rule: str) -> RunJudgement:
    """Return a rule that the decoder itself checks."""
    return lambda run: wrong_by(run.broken.get(rule))


# --- process ---


def _empty_stdin(evidence: ProviderEvidence) -> Wrong | None:
    run = evidence.the(RunPurpose.NOTHING)
    if run.ending is not Ending.EXITED:
        return Wrong(f"with nothing on stdin it {'hung' if run.ending is Ending.TIMED_OUT else 'crashed'}")
    return wrong_if(run.exit_code == 0, "with nothing on stdin it ended with exit code 0, as if it had answered")


def _is_known_to_hold(run: ProviderRun) -> bool:
    return run.holds_stdout is not None


def _check_held(run: ProviderRun) -> Wrong | None:
    return wrong_if(bool(run.holds_stdout), "a child process still held stdout after it exited")


# --- stdout ---


def _check_surroundings(run: ProviderRun) -> Wrong | None:
    text = run.stdout.decode("utf-8", "replace")
    start = text.find("{")
    if "one-object-on-stdout" not in run.broken or start < 0:
        return None
    try:
        value, end = json.JSONDecoder().raw_decode(text, start)
    except (ValueError, RecursionError):
        return None
    if not isinstance(value, dict) or "kind" not in value:
        return None
    before, after = bool(text[:start].strip()), bool(text[end:].strip())
    return Wrong(f"there is text {'before' if before else 'after'} the JSON object") if before or after else None


def _check_json(run: ProviderRun) -> Wrong | None:
    refusal = run.broken.get("one-object-on-stdout")
    if refusal is None or _check_surroundings(run) is not None:
        return None
    if _is_yaml(run.stdout):
        return Wrong("it is YAML, which the kubelet does not read", "print the same object as JSON")
    return wrong_by(refusal)


def _is_yaml(stdout: bytes) -> bool:
    try:
        value = parse(stdout).value
    except ConfigurationError:
        return False
    return isinstance(value, dict) and "kind" in value


# --- cache duration and cache key ---


def _check_plausible(run: ProviderRun) -> Wrong | None:
    duration = _duration(run)
    if duration < timedelta(0):
        return Wrong("cacheDuration is negative: the answer has expired before it is used")
    # A duration in microseconds is never intended: it looks like a number of seconds that was parsed as nanoseconds.
    duration_text = format_duration(duration)
    return wrong_if(
        timedelta(0) < duration < SHORT_CACHE, f"cacheDuration is {duration_text}, which looks like a wrong unit"
    )


def _check_long(run: ProviderRun) -> Wrong | None:
    duration = _duration(run)
    return wrong_if(duration > LONG_CACHE, f"cacheDuration is {format_duration(duration)}")


def _duration(run: ProviderRun) -> timedelta:
    assert run.response is not None
    assert run.response.cache_duration is not None
    return run.response.cache_duration


def _check_registry_scope(run: ProviderRun) -> Wrong | None:
    sibling = f"{run.request.image.partition('/')[0]}/{SIBLING}"
    return wrong_if(
        _kind(run) is CacheKeyType.REGISTRY and not any(matches(key, sibling) for key in run.keys),
        "cacheKeyType is Registry, and its keys are for a part of the registry: the other images of the registry "
        "get this answer from the cache, find no key in it, and are pulled without a credential",
    )


def _check_global_scope(run: ProviderRun) -> Wrong | None:
    return wrong_if(
        _kind(run) is CacheKeyType.GLOBAL and not any(matches(key, _elsewhere(run)) for key in run.keys),
        "cacheKeyType is Global, and its keys are for some hosts: images of other hosts that the provider is "
        "configured for get this answer from the cache, and find no key in it",
    )


def _elsewhere(run: ProviderRun) -> bytes:
    """Return an image of another host, with as many labels and the same port."""
    address = parse_address(run.request.image)
    host = b".".join([b"ostiary-check"] * len(address.labels))
    return host + (b":" + address.port if address.port else b"") + b"/" + SIBLING.encode()


def _empty_scope(evidence: ProviderEvidence) -> Wrong | None:
    run = evidence.the(RunPurpose.UNKNOWN_IMAGE)
    if run.response is None or run.response.auth:
        raise NothingToCheck
    is_cached = run.response.cache_duration is None or run.response.cache_duration > timedelta(0)
    message = "for an image it does not know it says Global: no image gets a credential until that has expired"
    return wrong_if(is_cached and run.response.cache_key_type is CacheKeyType.GLOBAL, message)


def _kind(run: ProviderRun) -> CacheKeyType:
    assert run.response is not None
    return run.response.cache_key_type


# --- credentials ---


def _check_auth(run: ProviderRun) -> Wrong | None:
    assert run.response is not None
    return wrong_if(not run.response.auth, "it answered without a credential for the image it was asked for")


def _check_keys_parse(run: ProviderRun) -> Wrong | None:
    assert run.response is not None
    broken = len(run.response.auth) - len(run.keys)
    return wrong_if(broken > 0, f"{broken} of the keys of auth cannot be parsed")


def _check_keys_match(run: ProviderRun) -> Wrong | None:
    if any(matches(key, run.request.image) for key in run.keys):
        return None
    # The key itself is not shown, because it comes from stdout.
    reasons = {mismatch.reason.value for key in run.keys if (mismatch := why_not(key, run.request.image))}
    return Wrong(f"no key of auth matches the image it was asked for ({', '.join(sorted(reasons)) or 'unparsable'})")


def _unknown_image(evidence: ProviderEvidence) -> Wrong | None:
    run = evidence.the(RunPurpose.UNKNOWN_IMAGE)
    # A provider that never works gives no evidence about this.
    if not evidence.the(RunPurpose.FIRST).ended_well or not ended_in_time(run):
        raise NothingToCheck
    if not run.ended_well:
        return Wrong("for an image it does not know, it failed")
    if run.response is None or not run.response.auth:
        return None
    fix = "leave out auth for images that are none of its own: it may be configured for more than it was made for"
    return Wrong("it has a credential for an image that does not exist", fix)


def _check_token(run: ProviderRun) -> Wrong | None:
    assert run.response is not None
    token = run.request.service_account_token
    message = (
        "it gave the service account token back as the password, which the kubelet takes only with cacheType: Token"
    )
    return wrong_if(token is not None and run.response.gives_back(token), message)


def _no_secret_on_stderr(evidence: ProviderEvidence) -> Wrong | None:
    secrets = {secret for run in evidence.runs for secret in _secrets(run)}
    if not secrets:
        raise NothingToCheck
    texts = [run.stderr.decode("utf-8", "replace") for run in evidence.runs]
    return wrong_if(any(secret in text for text in texts for secret in secrets), "a password or a token is on stderr")


def _secrets(run: ProviderRun) -> Iterator[str]:
    for login in run.response.auth.values() if run.response is not None else ():
        if len(login.password.reveal()) >= SHORTEST_SECRET:
            yield login.password.reveal()
    if run.request.service_account_token is not None:
        yield run.request.service_account_token.reveal()


FAIL, WARN = Result.FAIL, Result.WARN
_TO_STDERR = "print only the CredentialProviderResponse on stdout; write messages to stderr"

RULES: tuple[Rule[ProviderEvidence], ...] = (
    Rule("starts", "the command can be started", FAIL,
         "give the path of a program, or a script that begins with #! and is executable (chmod +x)", check_start),
    Rule("ends-in-time", "it ends within the time limit", FAIL,
         "give its network calls time limits: the kubelet ends it after one minute",
         each(any_run, check_time_limit)),
    Rule("exit-code", "it ends with exit code 0", FAIL,
         "exit 0 with an answer; run it by hand to see what it says on stderr", _first(check_exit, ended_in_time)),
    Rule("other-versions", "it also speaks the other versions", WARN,
         "answer in the apiVersion of the request, or tell users which apiVersion to configure",
         each(lambda run: run.purpose is RunPurpose.OTHER_VERSION and ended_in_time(run), check_exit)),
    Rule("is-quick", f"it answers within {SLOW_SECONDS:g} s", WARN,
         "every pull of an image waits for this, unless the answer is cached",
         each(ended_well, check_speed(SLOW_SECONDS))),
    Rule("leaves-nothing-behind", "no child process keeps its stdout open", FAIL,
         "start helpers with stdout and stderr redirected: the kubelet waits until stdout is closed by all",
         each(_is_known_to_hold, _check_held)),
    Rule("output-size", "it prints no more than an answer", FAIL, _TO_STDERR,
         each(ended_in_time, check_output_size)),
    Rule("prints-an-answer", "it prints something on stdout", FAIL,
         "print a CredentialProviderResponse even if there is no credential: without auth",
         each(lambda run: _was_given_a_request(run) and ended_well(run), check_prints)),
    Rule("nothing-around", "there is no text before or after the JSON object", FAIL, _TO_STDERR,
         each(_has_printed, _check_surroundings)),
    Rule("one-object-on-stdout", "stdout is one JSON object", FAIL, _TO_STDERR, each(_has_printed, _check_json)),
    Rule("api-version", "it answers in the apiVersion it was asked for", FAIL, "",
         each(_is_object, _wire("api-version"))),
    Rule("kind", "its kind is CredentialProviderResponse", FAIL, "", each(_is_object, _wire("kind"))),
    Rule("known-fields", "it has no unknown fields", FAIL, "", each(_is_object, _wire("known-fields"))),
    Rule("fields-once", "there are no duplicate fields", FAIL, "", each(_is_object, _wire("fields-once"))),
    Rule("cache-key-type", "cacheKeyType is Image, Registry or Global", FAIL, "",
         each(_is_object, _wire("cache-key-type"))),
    Rule("cache-duration", "cacheDuration is a duration of Go", FAIL, "", each(_is_object, _wire("cache-duration"))),
    Rule("auth-shape", "auth is an object of objects", FAIL, "", each(_is_object, _wire("auth-shape"))),
    Rule("field-types", "usernames and passwords are strings", FAIL, "", each(_is_object, _wire("field-types"))),
    Rule("plausible-cache-duration", "cacheDuration is a time that was meant", FAIL,
         'write a number with its unit, as in "6h"; "0s" is not to be cached', each(_is_cached, _check_plausible)),
    Rule("bounded-cache-duration", f"it is cached for no more than {format_duration(LONG_CACHE)}", WARN,
         "the kubelet keeps it that long, also after it was revoked", each(_is_cached, _check_long)),
    Rule("has-credential", "it has a credential for the image", WARN,
         "ask for an image that it knows: --image", _first(_check_auth, _is_usable)),
    Rule("keys-parse", "every key of auth can be parsed", WARN,
         "a key is a host, with * in it, then maybe a port in digits and the beginning of a path; others are skipped",
         each(_has_auth, _check_keys_parse)),
    Rule("keys-match", "a key of auth matches the image", WARN,
         "use the host of the image as the key, with its port if it has one",
         _first(_check_keys_match, lambda run: _has_auth(run) and bool(run.keys))),
    Rule("registry-scope", "what is cached for a registry is for all of it", FAIL,
         "use the registry's host alone as a key, or cacheKeyType Image", each(_has_match, _check_registry_scope)),
    Rule("global-scope", "what is cached for everything is for everything", WARN,
         "use cacheKeyType Registry, or Image", each(_has_match, _check_global_scope)),
    Rule("empty-answer-scope", "that it knows nothing of one image is not cached for all", FAIL,
         "use cacheKeyType Image, or Registry, for an answer without a credential", _empty_scope),
    Rule("unknown-image", "for an image that it does not know it answers, without a credential", WARN,
         "exit 0 and leave out auth: a failure is logged as an error at every pull, and is never cached",
         _unknown_image),
    Rule("empty-stdin", "with nothing on stdin it fails, soon and orderly", WARN,
         "say on stderr that a CredentialProviderRequest is expected, and exit 1", _empty_stdin),
    Rule("token-as-password", "the service account token is not the password", WARN,
         "exchange it at the registry; or else configure cacheType: Token",
         each(lambda run: run.purpose is RunPurpose.WITH_TOKEN and _is_usable(run), _check_token)),
    Rule("no-secret-on-stderr", "no password is on stderr", FAIL,
         "print it only on stdout: the kubelet logs stderr", _no_secret_on_stderr),
)  # fmt: skip
