"""Which credentials are tried for an image, and in which order. This is where the registry door begins.

    image -> pull secrets -> the node's docker config -> every provider that matches, all at once
          -> the logins of docker and podman, where they are asked for -> Lookup

The order is the kubelet's, which knows nothing of the last. A provider that fails takes nothing away from the
others: its failure stands beside what they found. `lookup` and `lookup_async` drive one and the same `_Inquiry`;
only how they wait differs.
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
    # Most callers have neither, and the docker credential helper starts at every pull.
    from ostiary.core.provider_switches import SwitchedOff, Switches
    from ostiary.registry.docker_config import NodeDockerConfig, PullSecret
    from ostiary.registry.docker_store import DockerStore

# How many image names are remembered with the providers that match them.
IMAGE_LIMIT = 8192
DOCKER_STORE = "the logins of docker and podman"

log = logging.getLogger("ostiary.registry")


@dataclass(frozen=True, slots=True)
class ProviderFailure:
    """A provider that matched and could not be asked, or gave no usable answer."""

    provider: str
    error: OstiaryError

    def __str__(self) -> str:
        return f"{self.provider}: {self.error.cause or self.error.summary}"


@dataclass(frozen=True, slots=True)
class Skipped:
    """A provider that matched and was left out, as the configuration wants it."""

    provider: str
    reason: str


@dataclass(frozen=True, slots=True)
class Lookup:
    """The credentials to try, in order. Empty: try without one, unless there were `failures`."""

    repository: str
    found: tuple[ImageCredential, ...] = ()
    failures: tuple[ProviderFailure, ...] = ()
    skipped: tuple[Skipped, ...] = ()

    def __iter__(self) -> Iterator[ImageCredential]:
        return iter(self.found)

    def __len__(self) -> int:
        return len(self.found)

    def docker_config(self) -> dict[str, dict[str, dict[str, str]]]:
        """The first credential as docker, podman and others read it from a ``config.json``. The secrets are revealed.

        The entry is for the whole registry, since docker knows neither paths nor patterns. Without a credential
        ``auths`` is empty. Raises `ConfigurationError` for a username that such a file cannot hold.
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
    """Everything that may have a credential for an image. Any number of threads and event loops share one.

    The providers' executables are files of *bin_dir*; with *search_path* also those of PATH, which the kubelet does
    not search. Without a *docker_config* the node's file is not looked
    for. *docker_store* adds, after everything the kubelet knows, what docker and podman on this machine would
    use: their auth files and helpers. *tokens* is needed by providers that work with the tokens of service
    accounts. Providers that *switches* has disabled are skipped, and what was cached of them is not used.
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
        """The configuration in force."""
        return self._table.config

    @property
    def providers(self) -> tuple[CachedProvider, ...]:
        return self._table.providers

    def matching_providers(self, image: str) -> tuple[CachedProvider, ...]:
        """Those that a lookup of *image* would ask, in this order; raises `ImageNameError`."""
        return self._table.image(image).providers

    def disabled(self, provider: CachedProvider) -> SwitchedOff | None:
        """Why *provider* is not asked now; None if it is. Raises `ConfigurationError` if that cannot be known."""
        return None if self._switches is None else self._switches.disabled(provider.config.name)

    def replace(self, config: ProvidersConfig) -> None:
        """Put *config* into force, at once and whole. A provider that stays as it was keeps its cache."""
        with self._replacing:
            old = {provider.config: provider for provider in self._table.providers}
            self._table = _ProviderTable(
                config, tuple(old.get(each) or self._provider(each) for each in config.providers)
            )
        self._metrics.record_config(config.hash)

    def lookup(
        self, image: str, *, pod: PodCoordinates | None = None, pull_secrets: Sequence[PullSecret] = ()
    ) -> Lookup:
        """The credentials for *image*, any spelling of its name; waits for providers that must run.

        Raises `ImageNameError` for what is no image name, and `ConfigurationError` for a pull secret that does
        not hold what its type says, or for switches that cannot be read. What goes wrong with a provider is part
        of the result.
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
        """`lookup` for an event loop."""
        inquiry = self._inquire(image, pod, pull_secrets)
        while not isinstance(inquiry, Lookup) and (landing := inquiry.pending()) is not None:
            await wait_async(landing)
        lookup = inquiry if isinstance(inquiry, Lookup) else inquiry.result()
        if self._docker_store is None:
            return lookup
        # In a thread: it may run a helper.
        return await wait_async(in_thread(lambda: self._with_store(lookup), name="ostiary-docker-helper"))

    def report_rejected(self, found: ImageCredential) -> bool:
        """The registry refused *found*: do not serve it from a cache again. Says whether it was in one.

        The next lookup runs its provider again. A newer answer that came meanwhile stays.
        """
        if self._docker_config is not None and self._docker_config.forget(found):
            return True
        if not isinstance(found.origin, Credentials):
            return False
        return any(provider.cache.forget(found.origin) for provider in self._table.providers)

    # --- the parts of a lookup ---

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
            # Imported only if it is asked for: see above.
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
        # Before the cache is looked into, for the answer may be cached by the token.
        fetching = in_thread(lambda: present(attributes, pod, self._tokens), name="ostiary-service-account-token")
        while not fetching.done():
            yield landing(fetching)
        presented = wait(fetching)
        if isinstance(presented, Skip):
            return presented
        return (yield from provider.ask(target, presented))


class _RememberedImage:
    """An image name, read once, the providers that match it, and what the last lookup found in the caches."""

    __slots__ = ("_memory", "providers", "target")

    def __init__(self, repository: str, providers: tuple[CachedProvider, ...]) -> None:
        self.target = Target(repository)
        self.providers = providers
        self._memory: tuple[Credentials | None, list[Credentials | None], Lookup] | None = None

    def recall(self, node: Credentials | None, kept: list[Credentials | None]) -> Lookup | None:
        """The last lookup, if it was made of just these. Lists are equal that hold the same objects."""
        memory = self._memory
        return memory[2] if memory is not None and memory[0] is node and memory[1] == kept else None

    def remember(self, node: Credentials | None, kept: list[Credentials | None], lookup: Lookup) -> None:
        self._memory = (node, kept, lookup)


class _ProviderTable:
    """The providers of one configuration, and which of them match an image. Replaced whole, never changed."""

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
    """What one provider is asked, and how far that is."""

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
        """Go on as far as possible; says what must be waited for, or None when `outcome` is there."""
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
    """One lookup: the questions to all providers that match, side by side."""

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
        """Something whose end lets us go on, or None when every provider has been heard."""
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
    """Done as soon as one of *futures* is."""
    if len(futures) == 1:
        return futures[0]
    first: Future[None] = Future()

    def wake(_: object) -> None:
        # A second one may end at the same moment.
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
