"""The login for an image that docker's and podman's own tools would use: helpers, stores, auth files.

The kubelet does not use them; other programs on a node do. Which file, and which entry of it:

    files    the one given; else $REGISTRY_AUTH_FILE; else all of these, until one has a login:
             $XDG_RUNTIME_DIR/containers/auth.json, $XDG_CONFIG_HOME/containers/auth.json,
             $DOCKER_CONFIG/config.json, ~/.dockercfg
    a file   credHelpers of the registry, and then nothing else; credsStore; auths by host/a/b, host/a, host;
             auths whose host is the registry under another spelling

A helper without a login lets the search continue; a helper that fails does not.
"""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterator, Mapping

from ostiary.core.process import DEFAULT_LIMITS, Ending, Outcome, RunLimits, Stderr, find_executable, run
from ostiary.core.redaction import redact, tail
from ostiary.core.text import printable
from ostiary.core.yaml import fold
from ostiary.errors import AnswerInvalid, ConfigurationError, PluginFailed, PluginNotFound
from ostiary.model import Place, Problem, Secret
from ostiary.registry.credentials import ImageCredential, Provenance, RegistryLogin, SourceKind
from ostiary.registry.docker_config import DOCKERCFG, DockerConfig, parse_config_json, parse_dockercfg
from ostiary.registry.docker_helper_protocol import HUB_NAMES, HUB_SERVER, NOT_FOUND, PREFIX, TOKEN_USERNAME
from ostiary.registry.image_name import DOCKER_HUB, OLD_DOCKER_HUB, parse_image_name

STDERR_SHOWN = 2048


class DockerHelper:
    """A program ``docker-credential-<suffix>`` on PATH, called for one server at a time."""

    def __init__(self, suffix: str, *, limits: RunLimits = DEFAULT_LIMITS, path: str | None = None) -> None:
        if not suffix or os.path.dirname(suffix):
            cause = f'"{printable(suffix)}" is not the suffix of a docker credential helper'
            raise ConfigurationError("a docker credential helper cannot be used", cause=cause)
        self.name = PREFIX + suffix
        self._limits = limits
        self._path = path

    def get(self, server: str) -> RegistryLogin | None:
        """Return the login for *server*, or None if it has none; raises `CredentialError` on failure."""
        outcome = self._run(server)
        # By the protocol a helper prints messages on stdout, where a password may be too: only the one known message is
        # evaluated, and none is quoted.
        if outcome.ending is Ending.EXITED and outcome.exit_code == 0:
            return self._login(outcome.stdout, server)
        if outcome.ending is Ending.EXITED and NOT_FOUND.encode() in outcome.stdout:
            return None
        raise PluginFailed(
            self._summary(server),
            exit_code=outcome.exit_code if outcome.ending is Ending.EXITED else -1,
            cause=f"{self.name} {self._ending(outcome)}{_stderr_of(outcome)}",
            hint=f"run it by hand to see why: echo {printable(server)} | {self.name} get",
            code="docker-helper-failed",
        )

    def _run(self, server: str) -> Outcome:
        executable = find_executable(self.name, path=self._path)
        try:
            if executable is None:
                raise FileNotFoundError(errno.ENOENT, "not on PATH")
            return run(
                executable,
                (self.name, "get"),
                env=os.environ,
                stdin=server.encode(),
                stderr=Stderr.CAPTURE,
                limits=self._limits,
            )
        except OSError as error:
            why = "is not on PATH" if error.errno == errno.ENOENT else f"cannot be executed: {error.strerror}"
            raise PluginNotFound(
                self._summary(server),
                cause=f"{self.name} {why}",
                hint="install it, or take it out of credHelpers and credsStore",
                code="docker-helper-not-found",
            ) from None

    def _login(self, stdout: bytes, server: str) -> RegistryLogin | None:
        username, secret = (_text(_object(stdout), name) for name in ("Username", "Secret"))
        if username is None or secret is None:
            raise AnswerInvalid(
                self._summary(server),
                cause=f"{self.name}: what it printed on stdout is not one JSON object with Username and Secret",
                hint="print only the answer on stdout, and messages on stderr",
                code="docker-helper-answer-invalid",
            )
        if not username and not secret:
            return None
        if username == TOKEN_USERNAME:
            return RegistryLogin(identity_token=Secret(secret))
        return RegistryLogin(username, Secret(secret))

    def _ending(self, outcome: Outcome) -> str:
        if outcome.ending is Ending.TIMED_OUT:
            return f"did not end within {self._limits.seconds:g} s"
        if outcome.ending is Ending.TOO_MUCH_OUTPUT:
            return f"printed more than {self._limits.stdout_bytes} bytes on stdout"
        if outcome.exit_code < 0:
            return f"was ended by signal {-outcome.exit_code}"
        return f"failed with exit code {outcome.exit_code}"

    def _summary(self, server: str) -> str:
        return f'no credential for "{printable(server)}"'


def _stderr_of(outcome: Outcome) -> str:
    secrets = outcome.stdout.decode("utf-8", "replace").split()
    text = redact(tail(outcome.stderr_tail, STDERR_SHOWN), secrets=secrets).strip()
    return f"; it said:\n{text}" if text else ""


def _object(stdout: bytes) -> Mapping[str, object] | None:
    try:
        value = json.loads(stdout.decode("utf-8"))
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _text(fields: Mapping[str, object] | None, name: str) -> str | None:
    if fields is None:
        return None
    # docker, which is written in Go, compares field names without regard to case.
    values = [value for key, value in fields.items() if fold(key) == fold(name)]
    value = values[-1] if values else ""
    return value if isinstance(value, str) else None


class DockerStore:
    """The logins of this user's docker and podman. The files are read on every lookup, like those tools do."""

    def __init__(self, file: str | os.PathLike[str] | None = None, *, limits: RunLimits = DEFAULT_LIMITS) -> None:
        self._file = None if file is None else os.fspath(file)
        self._limits = limits

    def find(self, image: str) -> ImageCredential | None:
        """Return the login; raises `ConfigurationError` for an invalid file, `CredentialError` for a helper."""
        repository = parse_image_name(image).repository
        for config in self._configs():
            credential = self._find_in(config, repository)
            if credential is not None:
                return credential
        return None

    def _configs(self) -> Iterator[DockerConfig]:
        given_path = self._file or os.environ.get("REGISTRY_AUTH_FILE")
        for path in [given_path] if given_path else auth_files():
            try:
                with open(path, "rb") as file:
                    data = file.read()
            except FileNotFoundError:
                if path == given_path:
                    raise _unreadable(path, "it does not exist") from None
                continue
            except OSError as error:
                # Report an unreadable file: ignored silently, it would look like a login that does not work.
                raise _unreadable(path, error.strerror or "it cannot be read") from None
            parse = parse_dockercfg if os.path.basename(path) == DOCKERCFG else parse_config_json
            yield parse(data, file=path, for_docker=True)

    def _find_in(self, config: DockerConfig, repository: str) -> ImageCredential | None:
        registry = repository.partition("/")[0]
        server = HUB_SERVER if registry == DOCKER_HUB else registry
        for name in (registry, *_other_names(registry), server):
            if suffix := config.helpers.get(name):
                return self._ask(suffix, server, registry)
        if config.store and (credential := self._ask(config.store, server, registry)):
            return credential
        for key in (*_walk(repository), *_same_registry(config, registry)):
            login = config.logins.get(key)
            if login:
                return _credential_of(login, key, Provenance(SourceKind.FILE, config.file or ""))
        return None

    def _ask(self, suffix: str, server: str, registry: str) -> ImageCredential | None:
        helper = DockerHelper(suffix, limits=self._limits)
        login = helper.get(server)
        return None if login is None else _credential_of(login, registry, Provenance(SourceKind.HELPER, helper.name))


def auth_files() -> list[str]:
    """Return where podman and then docker store logins, the most specific first."""
    home = os.path.expanduser("~")
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    containers = os.path.join("containers", "auth.json")
    return [
        os.path.join(runtime, containers) if runtime else f"/run/containers/{os.getuid()}/auth.json",
        os.path.join(os.environ.get("XDG_CONFIG_HOME") or os.path.join(home, ".config"), containers),
        os.path.join(os.environ.get("DOCKER_CONFIG") or os.path.join(home, ".docker"), "config.json"),
        os.path.join(home, DOCKERCFG),
    ]


def _walk(repository: str) -> Iterator[str]:
    """Yield ``host/a/b``, ``host/a``, ``host``: a login for a part of a registry takes precedence."""
    key = repository
    while key:
        yield key
        key = key.rpartition("/")[0]


def _same_registry(config: DockerConfig, registry: str) -> Iterator[str]:
    registry_key = _registry_key(registry)
    return (key for key in config.logins if "://" in key or "/" not in key if _registry_key(_host(key)) == registry_key)


def _host(key: str) -> str:
    return key.partition("://")[2].partition("/")[0] if "://" in key else key.partition("/")[0]


def _registry_key(registry: str) -> str:
    return OLD_DOCKER_HUB if registry in HUB_NAMES else registry


def _other_names(registry: str) -> tuple[str, ...]:
    return HUB_NAMES if registry in HUB_NAMES else ()


def _credential_of(login: RegistryLogin, key: str, source: Provenance) -> ImageCredential:
    return ImageCredential(
        login.username,
        login.password,
        key,
        source,
        email=login.email,
        identity_token=login.identity_token,
        registry_token=login.registry_token,
    )


def _unreadable(path: str, why: str) -> ConfigurationError:
    problems = [Problem(why, Place(path))]
    return ConfigurationError("the auth file cannot be read", problems=problems, code="config-unreadable")
