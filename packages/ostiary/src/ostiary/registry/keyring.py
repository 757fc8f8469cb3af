"""The keyring: which credentials are tried for an image, and in which order.

    image -> pull secrets -> the node's docker config -> all matching providers, concurrently
          -> the logins of docker and podman, if enabled -> Lookup

The order is the kubelet's, which does not use docker and podman logins. The failure of a provider does not affect the
others and is part of the result. `lookup` and `lookup_async` run the same `_Inquiry` and differ only in how they wait.
"""

from __future__ import annotations

import logging
import os
import threading
from base64 import b64encode
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ostiary.core.clock import SYSTEM_CLOCK, Clock
from ostiary.core.process import DEFAULT_LIMITS, RunLimits
from ostiary.core.single_flight import in_thread, landing, wait, wait_async
from ostiary.errors import ConfigurationError, OstiaryError
from ostiary.registry.cache import CachedProvider, ProviderAnswer, Target
from ostiary.registry.credentials import Credentials, ImageCredential, is_default_registry, unite
from ostiary.registry.docker_helper_protocol import HUB_SERVER
from ostiary.registry.image_matching import PatternIndex
from ostiary.registry.image_name import parse_image_name
from ostiary.registry.kubelet.model import ProviderConfig, ProvidersConfig
from ostiary.registry.kubelet.provider import CredentialProvider
from ostiary.registry.kubelet.service_account import (
    PodCoordinates,
    Skip,
    TokenSource,
    present,
    skip_without_account,
    wants_token,
)
from ostiary.registry.metrics import LookupVerdict, NoRegistryMetrics, RegistryMetrics

if TYPE_CHECKING:
    # Most callers need neither, and the docker credential helper starts on every pull.
    from ostiary.core.provider_switches import SwitchedOff, Switches
    from ostiary.registry.docker_config import NodeDockerConfig, PullSecret
    from ostiary.registry.docker_store import DockerStore

# How many image names are cached with the providers that match them.
IMAGE_LIMIT = 8192
DOCKER_STORE = "the logins of docker and podman"

log = logging.getLogger("ostiary.registry")


@dataclass(frozen=True, slots=True)
class ProviderFailure:
    """A provider that matched but could not be run or returned no usable response."""

    provider: str
    error: OstiaryError

    def __str__(self) -> str:
        return f"{self.provider}: {self.error.cause or self.error.summary}"


@dataclass(frozen=True, slots=True)
class Skipped:
    """A provider that matched but was left out according to the configuration."""

    provider: str
    reason: str


@dataclass(frozen=True, slots=True)
class Lookup:
    """The credentials to try, in order. If empty, try without credentials, unless there were `failures`."""

    repository: str
    found: tuple[ImageCredential, ...] = ()
    failures: tuple[ProviderFailure, ...] = ()
    skipped: tuple[Skipped, ...] = ()

    def __iter__(self) -> Iterator[ImageCredential]:
        return iter(self.found)

    def __len__(self) -> int:
        return len(self.found)

    def docker_config(self) -> dict[str, dict[str, dict[str, str]]]:
        """Return the first credential as a ``config.json`` for docker, podman and others. The secrets are revealed.

        The entry applies to the whole registry, because docker supports neither paths nor patterns. Without a
        credential ``auths`` is empty. Raises `ConfigurationError` for a username that such a file cannot hold.
        """
        auths: dict[str, dict[str, str]] = {}
        for credential in self.found[:1]:
            host = self.repository.partition("/")[0]
            auths[HUB_SERVER if is_default_registry(self.repository) else host] = _docker_entry(credential)
        return {"auths": auths}

    @property
    def verdict(self) -> LookupVerdict:
        if self.found:
            return LookupVerdict.FOUND
        return LookupVerdict.FAILED if self.failures else LookupVerdict.NONE


def _docker_entry(credential: ImageCredential) -> dict[str, str]:
    entry: dict[str, str] = {}
    if credential.username or credential.password:
        if ":" in credential.username:
            summary = "this credential cannot be written into a docker configuration"
            raise ConfigurationError(summary, cause="its username contains a colon", where=str(credential.source))
        pair = f"{credential.username}:{credential.password.reveal()}"
        entry["auth"] = b64encode(pair.encode()).decode()
    tokens = {"identitytoken": credential.identity_token, "registrytoken": credential.registry_token}
    return entry | {name: token.reveal() for name, token in tokens.items() if token}


class Keyring:
    """All sources of credentials for images. Shared by any number of threads and event loops.

    The providers' executables are in *bin_dir*, and with *search_path* also on PATH, which the kubelet does not search.
    Without a *docker_config* the node's file is not used. *docker_store* adds, after everything that the kubelet uses,
    the auth files and helpers of docker and podman on this machine. *tokens* is required by providers that use service
    account tokens. Providers that *switches* disables are skipped, and so are their cached credentials.
    """

    def __init__(
        self,
        config: ProvidersConfig,
        *,
        bin_dir: str | os.PathLike[str],
        search_path: bool = False,
        docker_config: NodeDockerConfig | None = None,
        docker_store: DockerStore | None = None,
        tokens: TokenSource | None = None,
        switches: Switches | None = None,
        limits: RunLimits = DEFAULT_LIMITS,
        metrics: RegistryMetrics | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._switches = switches
        self._bin_dir = os.path.abspath(os.fspath(bin_dir))
        self._search_path = search_path
        self._docker_config = docker_config
        self._docker_store = docker_store
        self._tokens = tokens
        self._limits = limits
        self._metrics = metrics or NoRegistryMetrics()
        self._clock = clock or SYSTEM_CLOCK
        self._replacing = threading.Lock()
        self._table = _ProviderTable(ProvidersConfig(()), ())
        self.replace(config)

    @property
    def config(self) -> ProvidersConfig:
        """Return the active configuration."""
        return self._table.config

    @property
    def providers(self) -> tuple[CachedProvider, ...]:
        return self._table.providers

    def matching_providers(self, image: str) -> tuple[CachedProvider, ...]:
        """Return the providers that a lookup of *image* would run, in this order; raises `ImageNameError`."""
        return self._table.image(image).providers

    def disabled(self, provider: CachedProvider) -> SwitchedOff | None:
        """Return why *provider* is disabled; None if it is not.

        Raises `ConfigurationError` if that cannot be determined.
        """
        return None if self._switches is None else self._switches.disabled(provider.config.name)

    def replace(self, config: ProvidersConfig) -> None:
        """Activate *config* atomically. Unchanged providers keep their caches."""
        with self._replacing:
            old = {provider.config: provider for provider in self._table.providers}
            self._table = _ProviderTable(
                config, tuple(old.get(each) or self._provider(each) for each in config.providers)
            )
        self._metrics.record_config(config.hash)

    def lookup(
        self, image: str, *, pod: PodCoordinates | None = None, pull_secrets: Sequence[PullSecret] = ()
    ) -> Lookup:
        """Return the credentials for *image*, in any spelling of its name; waits for providers that must run.

        Raises `ImageNameError` for an invalid image name, and `ConfigurationError` for a pull secret that does not
        match its type, or for switches that cannot be read. Failures of providers are part of the result.
        """
        inquiry = self._inquire(image, pod, pull_secrets)
        if isinstance(inquiry, Lookup):
            return self._with_store(inquiry)
        while (landing := inquiry.pending()) is not None:
            wait(landing)
        return self._with_store(inquiry.result())

    async def lookup_async(
        self, image: str, *, pod: PodCoordinates | None = None, pull_secrets: Sequence[PullSecret] = ()
    ) -> Lookup:
        """Like `lookup`, for an event loop."""
        inquiry = self._inquire(image, pod, pull_secrets)
        while not isinstance(inquiry, Lookup) and (landing := inquiry.pending()) is not None:
            await wait_async(landing)
        lookup = inquiry if isinstance(inquiry, Lookup) else inquiry.result()
        if self._docker_store is None:
            return lookup
        # In a thread, because it may run a helper.
        return await wait_async(in_thread(lambda: self._with_store(lookup), name="ostiary-docker-helper"))

    def report_rejected(self, found: ImageCredential) -> bool:
        """Report that the registry rejected *found*, and evict it from the caches. Returns whether it was cached.

        The next lookup runs its provider again. A newer entry that was cached meanwhile stays.
        """
        if self._docker_config is not None and self._docker_config.forget(found):
            return True
        if not isinstance(found.origin, Credentials):
            return False
        return any(provider.cache.forget(found.origin) for provider in self._table.providers)

    # --- parts of a lookup ---

    def _with_store(self, lookup: Lookup) -> Lookup:
        if self._docker_store is None:
            return lookup
        try:
            credential = self._docker_store.find(lookup.repository)
        except OstiaryError as error:
            return replace(lookup, failures=(*lookup.failures, ProviderFailure(DOCKER_STORE, error)))
        return lookup if credential is None else replace(lookup, found=(*lookup.found, credential))

    def _provider(self, config: ProviderConfig) -> CachedProvider:
        executable = os.path.join(self._bin_dir, config.name)
        if self._search_path:
            # Imported only if needed: see above.
            from ostiary.registry.kubelet.provider import find_provider

            executable = find_provider(config.name, self._bin_dir)
        provider = CredentialProvider(config, executable, limits=self._limits, metrics=self._metrics, clock=self._clock)
        return CachedProvider(provider, clock=self._clock, metrics=self._metrics)

    def _inquire(
        self, image_name: str, pod: PodCoordinates | None, pull_secrets: Sequence[PullSecret]
    ) -> _Inquiry | Lookup:
        image = self._table.image(image_name)
        node = None if self._docker_config is None else self._docker_config.credentials()
        cached = [
            None if each.config.token_attributes or self.disabled(each) else each.get_cached(image.target)
            for each in image.providers
        ]
        remembered = None if pull_secrets else image.recall(node, cached)
        if remembered is not None:
            self._metrics.record_lookup(remembered.verdict)
            return remembered
        repository = image.target.repository
        before = unite(_blocks_of(pull_secrets), repository) + (node.find(repository) if node else ())
        questions = [
            self._question(provider, image.target, pod)
            if credentials is None
            else _ProviderQuestion(provider, ProviderAnswer(credentials, True))
            for provider, credentials in zip(image.providers, cached, strict=True)
        ]
        inquiry = _Inquiry(repository, before, questions, self._metrics)
        if pull_secrets or None in cached:
            return inquiry
        lookup = inquiry.result()
        image.remember(node, cached, lookup)
        return lookup

    def _question(self, provider: CachedProvider, target: Target, pod: PodCoordinates | None) -> _ProviderQuestion:
        if disabled := self.disabled(provider):
            return _ProviderQuestion(provider, Skip(str(disabled)))
        attributes = provider.config.token_attributes
        if wants_token(attributes, pod):
            return _ProviderQuestion(provider, flow=self._ask_with_token(provider, target, pod))
        skip = skip_without_account(attributes)
        return _ProviderQuestion(provider, skip) if skip else _ProviderQuestion(provider, flow=provider.ask(target))

    def _ask_with_token(self, provider: CachedProvider, target: Target, pod: PodCoordinates | None) -> _Flow:
        attributes = provider.config.token_attributes
        assert attributes is not None
        assert pod is not None
        # Before the cache lookup, because the cache key may contain the token.
        fetching = in_thread(lambda: present(attributes, pod, self._tokens), name="ostiary-service-account-token")
        while not fetching.done():
            yield landing(fetching)
        presented = wait(fetching)
        if isinstance(presented, Skip):
            return presented
        return (yield from provider.ask(target, presented))


class _RememberedImage:
    """A parsed image name, the providers that match it, and the cached credentials that the last lookup found."""

    __slots__ = ("_memory", "providers", "target")

    def __init__(self, repository: str, providers: tuple[CachedProvider, ...]) -> None:
        self.target = Target(repository)
        self.providers = providers
        self._memory: tuple[Credentials | None, list[Credentials | None], Lookup] | None = None

    def recall(self, node: Credentials | None, kept: list[Credentials | None]) -> Lookup | None:
        """Return the last lookup if it was made of exactly these. Comparing lists of identical objects is fast."""
        memory = self._memory
        return memory[2] if memory is not None and memory[0] is node and memory[1] == kept else None

    def remember(self, node: Credentials | None, kept: list[Credentials | None], lookup: Lookup) -> None:
        self._memory = (node, kept, lookup)


class _ProviderTable:
    """The providers of one configuration, indexed by pattern. Immutable: replaced as a whole."""

    def __init__(self, config: ProvidersConfig, providers: tuple[CachedProvider, ...]) -> None:
        self.config = config
        self.providers = providers
        self._index = PatternIndex(
            ((pattern, provider) for provider in providers for pattern in provider.config.match_images),
            any_port=lambda provider: provider.config.any_port,
        )
        self._images: dict[str, _RememberedImage] = {}

    def image(self, name: str) -> _RememberedImage:
        image = self._images.get(name)
        if image is None:
            repository = parse_image_name(name).repository
            # Several patterns of one provider may match.
            image = _RememberedImage(repository, tuple(dict.fromkeys(self._index.find(repository))))
            if len(self._images) >= IMAGE_LIMIT:
                self._images.clear()
            self._images[name] = image
        return image


_Flow = Generator[Future[None], None, ProviderAnswer | Skip]


class _ProviderQuestion:
    """The state of one provider's part in a lookup."""

    __slots__ = ("_flow", "_waits_for", "outcome", "provider")

    def __init__(
        self,
        provider: CachedProvider,
        outcome: ProviderAnswer | Skip | OstiaryError | None = None,
        *,
        flow: _Flow | Generator[Future[None], None, ProviderAnswer] | None = None,
    ) -> None:
        self.provider = provider.config.name
        self.outcome = outcome
        self._flow = flow
        self._waits_for: Future[None] | None = None

    def advance(self) -> Future[None] | None:
        """Continue as far as possible. Returns what to wait for, or None once `outcome` is set."""
        while self.outcome is None and (self._waits_for is None or self._waits_for.done()):
            assert self._flow is not None
            try:
                self._waits_for = next(self._flow)
            except StopIteration as end:
                self.outcome = end.value
            except OstiaryError as error:
                self.outcome = error
        return None if self.outcome is not None else self._waits_for


class _Inquiry:
    """One lookup: all matching providers run concurrently."""

    __slots__ = ("_before", "_metrics", "_questions", "_repository")

    def __init__(
        self,
        repository: str,
        before: tuple[ImageCredential, ...],
        questions: list[_ProviderQuestion],
        metrics: RegistryMetrics,
    ) -> None:
        self._repository = repository
        self._before = before
        self._questions = questions
        self._metrics = metrics

    def pending(self) -> Future[None] | None:
        """Return a future to wait for before continuing, or None when every provider has finished."""
        waits_for = [future for question in self._questions if (future := question.advance()) is not None]
        return _first_of(waits_for) if waits_for else None

    def result(self) -> Lookup:
        answers: list[ProviderAnswer] = []
        failures: tuple[ProviderFailure, ...] = ()
        skipped: tuple[Skipped, ...] = ()
        for question in self._questions:
            outcome = question.outcome
            if isinstance(outcome, ProviderAnswer):
                answers.append(outcome)
            elif isinstance(outcome, Skip):
                skipped += (Skipped(question.provider, outcome.reason),)
            elif isinstance(outcome, OstiaryError):
                failures += (ProviderFailure(question.provider, outcome),)
                log.warning("%s: %s", outcome.summary, outcome.cause, extra={"code": outcome.code})
        lookup = Lookup(self._repository, self._before + self._credentials(answers), failures, skipped)
        self._metrics.record_lookup(lookup.verdict)
        return lookup

    def _credentials(self, answers: list[ProviderAnswer]) -> tuple[ImageCredential, ...]:
        if not answers:
            return ()
        credentials = unite([answer.credentials for answer in answers], self._repository)
        fresh = [answer.credentials for answer in answers if not answer.cached]
        if not fresh:
            return credentials
        return tuple(replace(each, cached=False) if each.origin in fresh else each for each in credentials)


def _first_of(futures: Sequence[Future[None]]) -> Future[None]:
    """Return a future that is done as soon as one of *futures* is."""
    if len(futures) == 1:
        return futures[0]
    first: Future[None] = Future()

    def wake(_: object) -> None:
        # Another future may complete at the same moment.
        with suppress(Exception):
            first.set_result(None)

    for future in futures:
        future.add_done_callback(wake)
    return first


def _blocks_of(pull_secrets: Sequence[PullSecret]) -> Sequence[Credentials]:
    if not pull_secrets:
        return ()
    from ostiary.registry.docker_config import secret_credentials

    return secret_credentials(pull_secrets)
