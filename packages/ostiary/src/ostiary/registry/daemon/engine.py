"""The daemon's requests: look up once, cache in memory, serve many clients.

    docker-get, docker-erase   a Keyring for each provider configuration that a client names
    provide                    `SourceAnswers` for each file of sources that a client names
    status, reload             for `ostiary registry`

Runs in one event loop; the HTTP API uses its keyring from other threads. Clients were authenticated before: they run as
our own user or root, so any configuration that they name may be read and run.
"""

from __future__ import annotations

import hashlib
import json
import os
import threading
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import partial

from ostiary import __version__
from ostiary.core.clock import SYSTEM_CLOCK, Clock
from ostiary.core.process import DEFAULT_LIMITS, RunLimits
from ostiary.core.provider_switches import Switches
from ostiary.core.redaction import redact
from ostiary.core.single_flight import SingleFlight, wait_async
from ostiary.core.text import printable
from ostiary.core.watched_file import WatchedFile
from ostiary.errors import ConfigurationError, OstiaryError
from ostiary.registry.cache import Target
from ostiary.registry.daemon import protocol
from ostiary.registry.daemon.status import ConfigStatus, DaemonStatus
from ostiary.registry.docker_helper_protocol import NOT_FOUND, image_of
from ostiary.registry.docker_login_search import FAILED, OK, HelperOutput, LoginSearch, tell
from ostiary.registry.image_matching import matches
from ostiary.registry.keyring import Keyring
from ostiary.registry.kubelet.model import ProvidersConfig
from ostiary.registry.kubelet.respond import respond, respond_disabled
from ostiary.registry.kubelet.sources import LoginSource, load
from ostiary.registry.kubelet.watch import Watch
from ostiary.registry.metrics import NoRegistryMetrics
from ostiary.wire.credential_provider import CacheKeyType, Request, Response, decode_request, encode_response


class ProviderRunCounts(NoRegistryMetrics):
    """Counts the runs of each provider, for ``ostiary registry status``. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._runs: Counter[str] = Counter()

    def record_run(self, provider: str, *, seconds: float, failed: bool) -> None:
        with self._lock:
            self._runs[provider] += 1

    def runs(self, provider: str) -> int:
        return self._runs[provider]


# Limit of cached responses per file of sources.

ENTRY_LIMIT = 4096
_Key = tuple[tuple[int, ...], str, str]


@dataclass(frozen=True, slots=True)
class _KeptResponse:
    response: Response
    expires_at: float


class _SourceRun(Future[Response]):
    """A run of the sources for *image*. Requests for other images of its registry may share it."""

    def __init__(self, image: str) -> None:
        super().__init__()
        self.image = image


class SourceAnswers:
    """The sources of one ``ImageCredentialSources`` file and a cache of their responses.

    Concurrent requests share one run. A cached response reports its remaining lifetime, because the kubelet caches it
    again. As in `registry.cache`, a response without a service account is for all pods, and one for a token is for that
    token only. Used from one event loop; sources run in threads.
    """

    def __init__(
        self,
        sources: tuple[LoginSource, ...],
        *,
        clock: Clock = SYSTEM_CLOCK,
        ask: Callable[[Request, tuple[LoginSource, ...]], Response] = respond,
        limit: int = ENTRY_LIMIT,
    ) -> None:
        self.sources = sources
        self.runs = 0
        self._ask = ask
        self._clock = clock
        self._limit = limit
        self._kept: OrderedDict[_Key, _KeptResponse] = OrderedDict()
        self._flights: SingleFlight[_SourceRun] = SingleFlight(thread_name="ostiary-credential-source")

    async def respond(self, request: Request) -> Response:
        """Return the response for *request*. Exceptions of the sources propagate and are not cached."""
        indexes = tuple(
            index
            for index, source in enumerate(self.sources)
            if any(matches(pattern, request.image) for pattern in source.match_images)
        )
        account = _account_key(request)
        kept = self._find(indexes, request.image, account)
        if kept is not None:
            return kept
        registry = request.image.partition("/")[0]
        if indexes and self.sources[indexes[0]].cache_key_type is CacheKeyType.REGISTRY:
            run = self._join((indexes, registry, account), request)
            try:
                response = await wait_async(run)
            except Exception:
                if run.image == request.image:
                    raise
            else:
                if response.cache_key_type is CacheKeyType.REGISTRY:
                    return response
            # The run may have been for another image of that registry, and then neither its response nor its error
            # applies to this one.
        kept = self._find(indexes, request.image, account)
        if kept is not None:
            return kept
        return await wait_async(self._join((indexes, request.image, account), request))

    def clear(self) -> None:
        with self._flights.lock:
            self._kept.clear()

    def __len__(self) -> int:
        """Return how many valid responses are cached."""
        now = self._clock.monotonic()
        with self._flights.lock:
            return sum(now < entry.expires_at for entry in self._kept.values())

    def _find(self, indexes: tuple[int, ...], image: str, account: str) -> Response | None:
        now = self._clock.monotonic()
        for base in (image, image.partition("/")[0]):
            entry = self._kept.get((indexes, base, account))
            if entry is not None and now < entry.expires_at:
                # In whole seconds, rounded down: never longer than the remaining lifetime.
                return replace(entry.response, cache_duration=timedelta(seconds=int(entry.expires_at - now)))
        return None

    def _join(self, key: _Key, request: Request) -> _SourceRun:
        with self._flights.lock:
            running = self._flights.running(key)
            if running is not None:
                return running
            self.runs += 1
            started_at = self._clock.monotonic()
            settle = partial(self._keep, key, request, started_at)
            return self._flights.start(
                _SourceRun(request.image), lambda: self._ask(request, self.sources), settle=settle, key=key
            )

    def _keep(
        self, key: _Key, request: Request, started_at: float, response: Response | None, error: BaseException | None
    ) -> None:
        if response is None or not response.cache_duration or response.cache_duration <= timedelta(0):
            return
        if any(self.sources[index].hosts_dir for index in key[0]):
            # Not cached: the node's mirrors select the host that the login is for, and may change at any time.
            return
        by_registry = response.cache_key_type is CacheKeyType.REGISTRY
        base = request.image.partition("/")[0] if by_registry else request.image
        kept_key = (key[0], base, key[2])
        expires_at = started_at + response.cache_duration.total_seconds()
        self._kept.pop(kept_key, None)
        while len(self._kept) >= self._limit:
            self._kept.popitem(last=False)
        self._kept[kept_key] = _KeptResponse(response, expires_at)


def _account_key(request: Request) -> str:
    if request.service_account_token is None and not request.service_account_annotations:
        return ""
    token = request.service_account_token.reveal() if request.service_account_token else ""
    parts = [token, *(text for item in sorted(request.service_account_annotations.items()) for text in item)]
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode("utf-8", "surrogatepass")
        digest.update(len(data).to_bytes(8, "big") + data)
    return digest.hexdigest()


PROVIDER_PROGRAM = "ostiary-credential-provider"
# How many configurations are cached; the least recently used is evicted.
MOST_CONFIGS = 16
# How often a configuration is checked for changes.
LOOK_SECONDS = 0.25


@dataclass(slots=True)
class KeptConfig:
    """A cached provider configuration."""

    path: str
    bin_dir: str
    keyring: Keyring
    watch: Watch
    counts: ProviderRunCounts
    looked_at: float

    def kept_answers(self) -> int:
        return sum(provider.cache.count() for provider in self.keyring.providers)


@dataclass(slots=True)
class KeptSources:
    """A cached file of sources."""

    path: str
    file: WatchedFile[tuple[LoginSource, ...]]
    answers: SourceAnswers = field(default_factory=lambda: SourceAnswers(()))


class CredentialDaemon:
    """The registry daemon without its sockets.

    Call `answer` in one event loop; `keyring` and `config` are thread-safe.
    """

    def __init__(
        self,
        *,
        switches: Switches,
        search_path: bool = False,
        limits: RunLimits = DEFAULT_LIMITS,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._switches, self._search_path, self._limits, self._clock = switches, search_path, limits, clock
        self._lock = threading.Lock()
        self._configs: OrderedDict[tuple[str, str], KeptConfig] = OrderedDict()
        self._sources: OrderedDict[str, KeptSources] = OrderedDict()
        self._started_at = clock.now()
        self.questions = 0
        self.asked_at = clock.monotonic()

    async def answer(self, verb: bytes, texts: list[bytes]) -> bytes:
        """Return the response to a client, in the format of `protocol`."""
        self._note_question()
        first, second = (os.fsdecode(text) for text in texts[:2])
        if verb == protocol.PROVIDE:
            return protocol.answer(*await self._provide(first, second, texts[2]))
        if verb in (protocol.GET, protocol.ERASE):
            server = texts[2].decode("utf-8", "replace")
            docker = self._docker_get if verb == protocol.GET else self._docker_erase
            code, stdout, stderr = await _helper_output(docker, first, second, server)
            return protocol.answer(code, f"{stdout}\n".encode() if stdout else b"", stderr.encode())
        report = self.reload(drop=first == "drop") if verb == protocol.RELOAD else self.status()
        return protocol.answer(OK, json.dumps(report).encode())

    def keyring(self, path: str, bin_dir: str) -> Keyring:
        """Return the keyring for a request that does not use `answer`; raises like `config`."""
        self._note_question()
        return self.config(path, bin_dir).keyring

    def config(self, path: str, bin_dir: str) -> KeptConfig:
        """Return the configuration at *path*, reloaded if it changed; `ConfigurationError` if it was never valid."""
        key = (path, bin_dir)
        now = self._clock.monotonic()
        with self._lock:
            kept = self._configs.get(key)
            if kept is None:
                kept = self._configs[key] = self._load(path, bin_dir, now)
                while len(self._configs) > MOST_CONFIGS:
                    self._configs.popitem(last=False)
            elif now - kept.looked_at > LOOK_SECONDS:
                kept.looked_at = now
                kept.watch.check_now()
            self._configs.move_to_end(key)
            return kept

    def kept_answers(self) -> int:
        """Return how many valid responses are cached."""
        return sum(kept.kept_answers() for kept in list(self._configs.values())) + sum(
            len(kept.answers) for kept in self._sources.values()
        )

    def status(self) -> DaemonStatus:
        """Return the status without secrets, as plain data for JSON."""
        try:
            disabled = [str(each) for each in self._switches.current().values()]
        except ConfigurationError as error:
            disabled = [f"{error.summary}: {error.cause}"]
        return {
            "version": __version__,
            "pid": os.getpid(),
            "started": self._started_at.isoformat(timespec="seconds"),
            "questions": self.questions,
            "keptAnswers": self.kept_answers(),
            "disabled": disabled,
            "configs": [self._config_status(kept) for kept in list(self._configs.values())],
            "sources": [
                {"path": kept.path, "sources": len(kept.answers.sources), "runs": kept.answers.runs}
                for kept in self._sources.values()
            ],
        }

    # --- requests ---

    async def _docker_get(self, path: str, bin_dir: str, server: str) -> HelperOutput:
        image = image_of(server)
        if image is None:
            return HelperOutput(FAILED, NOT_FOUND)
        keyring = self.config(path, bin_dir).keyring
        search = LoginSearch(server, image, keyring.config)
        for name in search.images():
            if search.take(await keyring.lookup_async(name)):
                break
        return search.output()

    async def _docker_erase(self, path: str, bin_dir: str, server: str) -> HelperOutput:
        """Evict what we cached for *server*, which the registry rejected, or for which the user logged out.

        The next request runs the provider.
        """
        image = image_of(server)
        if image is not None:
            keyring = self.config(path, bin_dir).keyring
            for name in LoginSearch(server, image, keyring.config).images():
                for provider in keyring.matching_providers(name):
                    while kept := provider.cache.get(Target(name).keys):
                        provider.cache.forget(kept)
        return HelperOutput(OK, "")

    async def _provide(self, path: str, name: str, stdin: bytes) -> tuple[int, bytes, bytes]:
        try:
            request = decode_request(stdin)
            switched_off = self._switches.disabled(name)
            if switched_off is not None:
                stderr = f"{PROVIDER_PROGRAM}: {switched_off}\n".encode()
                return OK, encode_response(respond_disabled(), api_version=request.api_version), stderr
            response = await self._answers(path).respond(request)
            return OK, encode_response(response, api_version=request.api_version), b""
        except OstiaryError as error:
            text = printable(str(error))
        except Exception as error:
            text = f"{type(error).__name__}: {redact(str(error))}"
        return FAILED, b"", f"{PROVIDER_PROGRAM}: {text}\n".encode()

    def reload(self, *, drop: bool = False) -> DaemonStatus:
        """Check all configurations for changes now; with *drop* also clear all caches. Returns the `status`."""
        for kept in list(self._configs.values()):
            kept.watch.check_now()
            if drop:
                for provider in kept.keyring.providers:
                    provider.cache.clear()
        for sources in self._sources.values():
            if drop:
                sources.answers.clear()
        return self.status()

    def _note_question(self) -> None:
        with self._lock:
            self.questions += 1
            self.asked_at = self._clock.monotonic()

    # --- caches ---

    def _load(self, path: str, bin_dir: str, now: float) -> KeptConfig:
        counts = ProviderRunCounts()
        keyring = Keyring(
            ProvidersConfig(()),
            bin_dir=bin_dir,
            search_path=self._search_path,
            switches=self._switches,
            limits=self._limits,
            metrics=counts,
        )
        watch = Watch(path, keyring)
        watch.check_now()
        if watch.last_error is not None:
            raise watch.last_error
        return KeptConfig(path, bin_dir, keyring, watch, counts, now)

    def _answers(self, path: str) -> SourceAnswers:
        kept = self._sources.get(path)
        if kept is None:
            kept = self._sources[path] = KeptSources(path, WatchedFile(path, load))
            while len(self._sources) > MOST_CONFIGS:
                self._sources.popitem(last=False)
        self._sources.move_to_end(path)
        sources = kept.file.current()
        if sources != kept.answers.sources:
            kept.answers = SourceAnswers(sources, clock=self._clock)
        return kept.answers

    def _config_status(self, kept: KeptConfig) -> ConfigStatus:
        error = kept.watch.last_error
        return {
            "path": kept.path,
            "hash": kept.keyring.config.hash,
            "error": "" if error is None else printable(f"{error.summary}: {error.cause}"),
            "providers": [
                {
                    "name": provider.config.name,
                    "disabled": self._is_disabled(provider.config.name),
                    "runs": kept.counts.runs(provider.config.name),
                    "keptAnswers": provider.cache.count(),
                }
                for provider in kept.keyring.providers
            ],
        }

    def _is_disabled(self, name: str) -> bool:
        try:
            return self._switches.disabled(name) is not None
        except ConfigurationError:
            return True


_Docker = Callable[[str, str, str], Awaitable[HelperOutput]]


async def _helper_output(docker: _Docker, path: str, bin_dir: str, server: str) -> HelperOutput:
    try:
        return await docker(path, bin_dir, server)
    except OstiaryError as error:
        return HelperOutput(FAILED, printable(error.summary), tell(str(error)))
    except Exception as error:
        stderr = tell(f"{type(error).__name__}: {redact(str(error))}")
        return HelperOutput(FAILED, "docker-credential-ostiary failed", stderr)
