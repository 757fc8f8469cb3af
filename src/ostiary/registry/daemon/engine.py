"""Answers the questions of the programs that pull: look up once, keep in memory, answer many.

    docker-get, docker-erase   a Keyring for each provider configuration that a program names
    provide                    `SourceAnswers` for each file of sources that a program names
    status, reload             for `ostiary registry`

Called by `socket_server`, in one event loop, and by `http_api`, for the keyring. Who asks has been checked by then: it
is the same user as ours, or root, so that whatever configuration is named may be read and run.
"""

from __future__ import annotations

import json
import os
import threading
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from ostiary import __version__
from ostiary.core.clock import SYSTEM_CLOCK, Clock
from ostiary.core.process import DEFAULT_LIMITS, RunLimits
from ostiary.core.provider_switches import Switches
from ostiary.core.secrets.redact import redact
from ostiary.core.text import printable
from ostiary.core.watched_file import WatchedFile
from ostiary.errors import ConfigurationError, OstiaryError
from ostiary.registry.cache import Target
from ostiary.registry.daemon import protocol
from ostiary.registry.daemon.run_counts import ProviderRunCounts
from ostiary.registry.daemon.source_answers import SourceAnswers
from ostiary.registry.daemon.status import ConfigStatus, DaemonStatus
from ostiary.registry.docker.helper_protocol import NOT_FOUND, image_of
from ostiary.registry.docker.login_search import FAILED, OK, HelperOutput, LoginSearch, tell
from ostiary.registry.keyring import Keyring
from ostiary.registry.kubelet.model import ProvidersConfig
from ostiary.registry.kubelet.respond import respond_disabled
from ostiary.registry.kubelet.sources.config import LoginSource, load
from ostiary.registry.kubelet.watch import Watch
from ostiary.wire.credential_provider import decode_request, encode_response

PROVIDER_PROGRAM = "ostiary-credential-provider"
# How many configurations are kept at once; the one that was not asked for the longest makes room.
MOST_CONFIGS = 16
# How often a configuration is looked at for changes.
LOOK_SECONDS = 0.25


@dataclass(slots=True)
class KeptConfig:
    """A provider configuration that is in use."""

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
    """A file of sources that is in use."""

    path: str
    file: WatchedFile[tuple[LoginSource, ...]]
    answers: SourceAnswers = field(default_factory=lambda: SourceAnswers(()))


class CredentialDaemon:
    """One event loop asks `answer`; `keyring` and `config` may be asked for from any thread."""

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
        """What goes back to the program, in the form of `protocol`."""
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
        """For a question that does not come through `answer`; raises as `config` does."""
        self._note_question()
        return self.config(path, bin_dir).keyring

    def config(self, path: str, bin_dir: str) -> KeptConfig:
        """What is kept of the configuration at *path*, up to date; `ConfigurationError` if it was never usable."""
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
        """How many answers are in memory and still good."""
        return sum(kept.kept_answers() for kept in list(self._configs.values())) + sum(
            len(kept.answers) for kept in self._sources.values()
        )

    def status(self) -> DaemonStatus:
        """How it is, without a secret: plain data, for JSON."""
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

    # --- the questions ---

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
        """The registry has rejected what we keep, or somebody signs out: the next question runs the provider."""
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
        """Look at all configurations now; with *drop* nothing that was kept is used again. Returns the `status`."""
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

    # --- what is kept ---

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
