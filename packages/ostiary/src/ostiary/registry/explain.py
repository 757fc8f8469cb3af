"""Explains why an image gets its credentials, or none: every step of a lookup.

    name -> each source -> each provider x pattern -> cache -> run -> each key of the response -> the order of trying

Uses the keyring's own parts, so that the explanation matches a real lookup. With ``run=False`` no provider is started.
An `ImageExplanation` contains no password; it is plain data, for the terminal or as JSON.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from ostiary.core.clock import SYSTEM_CLOCK, Clock
from ostiary.core.redaction import redact
from ostiary.core.single_flight import wait
from ostiary.core.text import printable
from ostiary.errors import ConfigurationError, OstiaryError
from ostiary.registry.cache import CachedProvider, ProviderAnswer, Target
from ostiary.registry.credentials import Credentials, ImageCredential, unite
from ostiary.registry.docker_config import NodeDockerConfig, PullSecret, secret_credentials
from ostiary.registry.image_matching import Reason, why_not
from ostiary.registry.image_name import OLD_DOCKER_HUB, ImageName, parse_image_name
from ostiary.registry.keyring import Keyring
from ostiary.registry.kubelet.service_account import (
    PodCoordinates,
    Presented,
    Skip,
    TokenSource,
    present,
    skip_without_account,
    wants_token,
)
from ostiary.registry.lint_document import without_userinfo


@dataclass(frozen=True, slots=True)
class Image:
    """The image name as given and as parsed. Patterns are compared with `repository`."""

    given: str
    repository: str
    domain: str
    path: str
    tag: str
    digest: str


@dataclass(frozen=True, slots=True)
class PatternVerdict:
    """Whether a pattern, or a key of a response, matches the image; otherwise the first reason why not."""

    pattern: str
    matches: bool
    reason: str = ""
    message: str = ""
    hint: str = ""


@dataclass(frozen=True, slots=True)
class CacheState:
    """A key under which a response may be cached. `seconds_left` is None if there is none."""

    scope: str
    key: str
    seconds_left: float | None = None


@dataclass(frozen=True, slots=True)
class ProviderTrace:
    """What happened at one provider. `outcome` is a key of `OUTCOMES`, and `detail` is for users."""

    name: str
    where: str
    executable: str
    patterns: tuple[PatternVerdict, ...]
    outcome: str
    detail: str = ""
    hint: str = ""
    code: str = ""
    seconds: float | None = None
    cache: tuple[CacheState, ...] = ()
    keys: tuple[PatternVerdict, ...] = ()

    @property
    def matches(self) -> bool:
        return any(verdict.matches for verdict in self.patterns)


# The end of a conclusion about the kubelet.
PULLS_WITHOUT = "; the kubelet pulls without one"
OUTCOMES = {
    "no-match": "none of its patterns matches, so it is not run",
    "would-run": "it would be run",
    "skipped": "it is skipped for this pod",
    "disabled": "it is switched off",
    "failed": "it gave no usable answer",
    "cached": "its answer came from the cache",
    "ran": "it was run",
}


@dataclass(frozen=True, slots=True)
class SourceTrace:
    """A source other than a provider: a pull secret, or the node's docker configuration."""

    source: str
    keys: tuple[PatternVerdict, ...] = ()
    error: str = ""


@dataclass(frozen=True, slots=True)
class CredentialCandidate:
    """A credential that is tried, without its secrets."""

    position: int
    username: str
    key: str
    source: str
    form: str


@dataclass(frozen=True, slots=True)
class ImageExplanation:
    """The complete explanation. `complete` is False if a matching provider was not run."""

    image: Image
    config_hash: str
    sources: tuple[SourceTrace, ...]
    providers: tuple[ProviderTrace, ...]
    candidates: tuple[CredentialCandidate, ...]
    complete: bool
    conclusion: str
    config_files: tuple[str, ...] = ()


def explain(
    keyring: Keyring,
    image: str,
    *,
    pod: PodCoordinates | None = None,
    pull_secrets: Sequence[PullSecret] = (),
    docker_config: NodeDockerConfig | None = None,
    tokens: TokenSource | None = None,
    run: bool = True,
    clock: Clock = SYSTEM_CLOCK,
) -> ImageExplanation:
    """Look *image* up, one source after the other, and explain each step; raises `ImageNameError`.

    *docker_config* and *tokens* are those of the keyring. Without *run*, providers that are not cached are not started.
    """
    name = parse_image_name(image)
    explainer = _Explainer(keyring, Target(name.repository), pod, tokens, run, clock)
    secrets, secret_traces = _secrets(pull_secrets, name.repository)
    node = None if docker_config is None else docker_config.credentials()
    traces = tuple(explainer.provider(provider) for provider in keyring.providers)
    answers = explainer.answers
    credentials = unite(secrets, name.repository) + (node.find(name.repository) if node else ())
    credentials += unite(answers, name.repository) if answers else ()
    sources = (*secret_traces, *(_node_traces(node, name.repository) if node else ()))
    candidates = tuple(_candidate(number, credential) for number, credential in enumerate(credentials, 1))
    complete = all(trace.outcome != "would-run" for trace in traces)
    conclusion = _conclusion(candidates, traces, complete)
    config = keyring.config
    files = tuple(printable(file) for file in config.files)
    return ImageExplanation(
        _image(image, name), config.hash, sources, traces, candidates, complete, conclusion, config_files=files
    )


def _image(given: str, name: ImageName) -> Image:
    return Image(printable(given), name.repository, name.domain, name.path, name.tag, name.digest)


# --- providers ---


class _Explainer:
    """Runs one provider after the other and collects the results in their order."""

    def __init__(
        self,
        keyring: Keyring,
        target: Target,
        pod: PodCoordinates | None,
        tokens: TokenSource | None,
        run: bool,
        clock: Clock,
    ) -> None:
        self._keyring, self._target, self._pod, self._tokens = keyring, target, pod, tokens
        self._run, self._clock = run, clock
        self.answers: list[Credentials] = []

    def provider(self, provider: CachedProvider) -> ProviderTrace:
        config = provider.config
        repository, any_port = self._target.repository, config.any_port
        patterns = tuple(_verdict(pattern, repository, any_port=any_port) for pattern in config.match_images)
        where, executable = str(config.place), provider.provider.executable
        trace = ProviderTrace(config.name, where, executable, patterns, "no-match", OUTCOMES["no-match"])
        if not trace.matches:
            return trace
        trace = replace(trace, cache=tuple(self._cache(provider)))
        try:
            if disabled := self._keyring.disabled(provider):
                return replace(trace, outcome="disabled", detail=str(disabled), hint=disabled.remedy)
            presented = self._present(provider)
            if isinstance(presented, Skip):
                return replace(trace, outcome="skipped", detail=presented.reason)
            if not self._run and not self._is_kept(provider):
                return replace(trace, outcome="would-run", detail=OUTCOMES["would-run"])
            return self._ask(trace, provider, presented)
        except OstiaryError as error:
            detail = error.cause or error.summary
            return replace(trace, outcome="failed", detail=detail, hint=error.hint or "", code=error.code)

    def _present(self, provider: CachedProvider) -> Presented | Skip | None:
        attributes = provider.config.token_attributes
        if attributes is None or not wants_token(attributes, self._pod):
            return skip_without_account(attributes)
        assert self._pod is not None
        if not self._run:
            # Dry run: do not request a service account token.
            return None
        return present(attributes, self._pod, self._tokens)

    def _ask(self, trace: ProviderTrace, provider: CachedProvider, presented: Presented | None) -> ProviderTrace:
        started_at = self._clock.monotonic()
        answer = _answer(provider, self._target, presented)
        seconds = None if answer.cached else self._clock.monotonic() - started_at
        self.answers.append(answer.credentials)
        outcome = "cached" if answer.cached else "ran"
        keys = tuple(_verdict(key, self._target.repository) for key in answer.credentials.keys)
        detail = OUTCOMES[outcome] if keys else f"{OUTCOMES[outcome]}, and it has no credential"
        cache = tuple(self._cache(provider))
        return replace(trace, outcome=outcome, detail=detail, seconds=seconds, keys=keys, cache=cache)

    def _is_kept(self, provider: CachedProvider) -> bool:
        # With a service account, the cache key depends on the account and its token.
        return provider.config.token_attributes is None and provider.cache.get(self._target.keys) is not None

    def _cache(self, provider: CachedProvider) -> Iterator[CacheState]:
        if provider.config.token_attributes is not None:
            return
        for kind, key in zip(self._target.bases, self._target.keys, strict=True):
            yield CacheState(kind.value, self._target.bases[kind], provider.cache.seconds_left(key))


def _answer(provider: CachedProvider, target: Target, presented: Presented | None) -> ProviderAnswer:
    asking = provider.ask(target, presented)
    while True:
        try:
            wait(next(asking))
        except StopIteration as end:
            answer: ProviderAnswer = end.value
            return answer


def _verdict(pattern: str | bytes, repository: str, *, any_port: bool = False) -> PatternVerdict:
    text = pattern if isinstance(pattern, str) else pattern.decode("utf-8", "replace")
    displayed = printable(without_userinfo(text))
    mismatch = why_not(pattern, repository, any_port=any_port)
    if mismatch is None:
        return PatternVerdict(displayed, True)
    message = mismatch.message
    if "@" in text and mismatch.reason is Reason.PATTERN_UNPARSABLE:
        # The parts cannot be distinguished, and one of them may be a password before the host.
        displayed, message = f"***@{printable(text.rpartition('@')[2])}", "the pattern cannot be parsed"
    return PatternVerdict(displayed, False, mismatch.reason.value, message, mismatch.hint or "")


# --- the other sources ---


def _secrets(secrets: Sequence[PullSecret], repository: str) -> tuple[list[Credentials], list[SourceTrace]]:
    blocks: list[Credentials] = []
    traces: list[SourceTrace] = []
    for secret in secrets:
        name = printable(f"secret {secret.namespace}/{secret.name}")
        try:
            read = secret_credentials([secret])
        except ConfigurationError as error:
            # In the kubelet this ends the whole lookup.
            traces.append(SourceTrace(name, error=f"{error.cause or error.summary}; the kubelet gives up here"))
            continue
        blocks += read
        traces += [_source_trace(credentials, name, repository) for credentials in read] or [
            SourceTrace(name, error="its type and the key of its data do not belong together, so it is skipped")
        ]
    return blocks, traces


def _node_traces(node: Credentials, repository: str) -> Iterator[SourceTrace]:
    file = node.source.name
    if file or node.keys:
        yield _source_trace(node, printable(f"file {file}"), repository)


def _source_trace(credentials: Credentials, name: str, repository: str) -> SourceTrace:
    verdicts = tuple(_verdict(key, repository) for key in credentials.keys)
    if credentials.find(repository) and not any(verdict.matches for verdict in verdicts):
        verdicts = tuple(_for_the_hub(verdict) for verdict in verdicts)
    return SourceTrace(name, verdicts)


def _for_the_hub(verdict: PatternVerdict) -> PatternVerdict:
    if verdict.pattern != OLD_DOCKER_HUB:
        return verdict
    return PatternVerdict(verdict.pattern, True, message="it counts for Docker Hub because no other key matches")


# --- conclusions ---


def _candidate(position: int, found: ImageCredential) -> CredentialCandidate:
    form = "anonymous"
    if found.identity_token:
        form = "identity token"
    elif found.registry_token:
        form = "registry token"
    elif found.username or found.password:
        form = "username and password"
    return CredentialCandidate(position, redact(found.username), printable(found.key), str(found.source), form)


def _conclusion(candidates: Sequence[CredentialCandidate], traces: Sequence[ProviderTrace], complete: bool) -> str:
    failed = [trace.name for trace in traces if trace.outcome == "failed"]
    also = f"; not counting what failed: {', '.join(failed)}" if failed else ""
    if not complete:
        return f"{len(candidates)} known so far{also}; providers that match were not run"
    if candidates:
        count = "1 credential is" if len(candidates) == 1 else f"{len(candidates)} credentials are"
        return f"{count} tried, in this order{also}"
    if failed:
        return f"no credential: {', '.join(failed)} failed{PULLS_WITHOUT}"
    if disabled := [trace.name for trace in traces if trace.outcome == "disabled"]:
        return f"no credential: {', '.join(disabled)} is switched off{PULLS_WITHOUT}"
    if not any(trace.matches for trace in traces):
        return f"no credential: no provider matches this image{PULLS_WITHOUT}"
    return f"no credential: nothing that was answered has a key for this image{PULLS_WITHOUT}"
