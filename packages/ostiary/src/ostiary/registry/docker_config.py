"""Reads docker's files: ``config.json``, the older ``.dockercfg``, and secrets that contain either of them.

Pull secrets and the node's own file come before the providers, in this order. The node's file is searched for like the
kubelet does: ``config.json`` in its directory, here, ``~/.docker`` and ``/.docker``, then ``.dockercfg`` in the
directory, here, ``~`` and ``/``. Only the first readable file counts. Helpers that a file names are for docker's
clients and not for the kubelet: see `docker_store`.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from ostiary.core.clock import SYSTEM_CLOCK, Clock
from ostiary.core.go_text import decode_base64, text_of
from ostiary.core.text import printable
from ostiary.core.yaml import DOCKER, Node, fold, join, parse
from ostiary.errors import ConfigurationError
from ostiary.model import Place, Problem, Secret
from ostiary.registry.credentials import Credentials, ImageCredential, Provenance, RegistryLogin, SourceKind

CONFIG_JSON, DOCKERCFG = "config.json", ".dockercfg"
# The type of a secret, the key of its data, and whether its logins are under ``auths``.
SECRET_FORMS = {
    "kubernetes.io/dockerconfigjson": (".dockerconfigjson", True),
    "kubernetes.io/dockercfg": (".dockercfg", False),
}
LIFETIME_SECONDS = 5 * 60.0

# The fields of an entry that the kubelet reads, and those that it ignores.
_ENTRY_FIELDS = ("username", "password", "email", "auth")
_TOKEN_FIELDS = ("identitytoken", "registrytoken")
T = TypeVar("T")

log = logging.getLogger("ostiary.registry")


@dataclass(frozen=True, slots=True)
class DockerConfig:
    """The logins of a file by their raw keys, and the helpers that docker's clients would run."""

    logins: Mapping[str, RegistryLogin] = field(default_factory=dict)
    helpers: Mapping[str, str] = field(default_factory=dict)
    store: str = ""
    file: str | None = None


@dataclass(frozen=True, slots=True)
class PullSecret:
    """A Secret that a pod or its service account names in ``imagePullSecrets``."""

    namespace: str
    name: str
    type: str
    data: Mapping[str, bytes] = field(repr=False)
    uid: str = ""


# --- one file ---


def parse_config_json(data: bytes, *, file: str | None = None, for_docker: bool = False) -> DockerConfig:
    """Parse a ``config.json`` or an ``auth.json``; raises `ConfigurationError`, which quotes nothing of it.

    Only the fields that the kubelet reads must have the right type. *for_docker*: also those that docker's own tools
    read.
    """
    return _DockerConfigReading(file, for_docker=for_docker).config_json(data)


def parse_dockercfg(data: bytes, *, file: str | None = None, for_docker: bool = False) -> DockerConfig:
    """Parse a ``.dockercfg``: the logins without an enclosing object."""
    return _DockerConfigReading(file, for_docker=for_docker).dockercfg(data)


class _DockerConfigReading:
    """One pass over a file. One error makes the whole file unusable, and all errors are reported.

    As in Go, field names are case-insensitive, while registry names are not. Of a repeated field the last text counts,
    and two objects of logins are merged.
    """

    def __init__(self, file: str | None, *, for_docker: bool) -> None:
        self._file = file
        self._for_docker = for_docker
        self._problems: list[Problem] = []

    def config_json(self, data: bytes) -> DockerConfig:
        logins: dict[str, RegistryLogin] = {}
        helpers: dict[str, str] = {}
        store = ""
        for name, node, path in self._fields(self._root(data), ""):
            if name == "auths":
                self._add(logins, node, self._logins(node, path))
            elif name == "httpheaders":
                self._texts(node, path, is_read=True)
            elif name == "credhelpers":
                self._add(helpers, node, self._texts(node, path, is_read=self._for_docker))
            elif name == "credsstore":
                text = self._text(node, path, is_read=self._for_docker)
                store = store if text is None else text
        return self._finish(DockerConfig(logins, helpers, store, self._file))

    def dockercfg(self, data: bytes) -> DockerConfig:
        return self._finish(DockerConfig(self._logins(self._root(data), ""), file=self._file))

    def _root(self, data: bytes) -> Node:
        try:
            root = parse(data, file=self._file, dialect=DOCKER).root
        except ConfigurationError as error:
            problems = error.problems
        else:
            if isinstance(root.value, (dict, type(None))):
                return root
            problems = (Problem("it is not a JSON object", Place(self._file)),)
        raise self._unusable(problems, "config-syntax")

    def _finish(self, config: DockerConfig) -> DockerConfig:
        if self._problems:
            raise self._unusable(self._problems, "config-invalid")
        return config

    def _unusable(self, problems: Sequence[Problem], code: str) -> ConfigurationError:
        return ConfigurationError("the docker configuration cannot be used", problems=problems, code=code)

    def _fields(self, node: Node, path: str) -> Iterator[tuple[str, Node, str]]:
        return ((fold(key), value, join(path, key)) for key, value in node.pairs())

    def _add(self, together: dict[str, T], node: Node, more: Mapping[str, T]) -> None:
        if node.value is None:
            together.clear()
        together.update(more)

    def _logins(self, node: Node, path: str) -> dict[str, RegistryLogin]:
        return {key: self._login(entry, join(path, key)) for key, entry in self._entries(node, path, is_read=True)}

    def _login(self, node: Node, path: str) -> RegistryLogin:
        texts = dict.fromkeys((*_ENTRY_FIELDS, *_TOKEN_FIELDS), "")
        self._entries(node, path, is_read=True)
        for name, value, value_path in self._fields(node, path):
            if name in texts:
                is_read = self._for_docker or name in _ENTRY_FIELDS
                text = self._text(value, value_path, is_read=is_read)
                texts[name] = texts[name] if text is None else text
        username, password = texts["username"], texts["password"]
        if texts["auth"]:
            try:
                username, password = decode_auth(texts["auth"])
            except ValueError as error:
                hint = "it is base64 of username:password; docker login writes it"
                self._problem(str(error), join(path, "auth"), node, hint)
        tokens = (Secret(texts[name]) for name in _TOKEN_FIELDS)
        return RegistryLogin(username, Secret(password), texts["email"], *tokens)

    def _entries(self, node: Node, path: str, *, is_read: bool) -> Iterable[tuple[str, Node]]:
        if is_read and not isinstance(node.value, (dict, type(None))):
            self._problem("expected an object", path, node)
        return node.pairs()

    def _texts(self, node: Node, path: str, *, is_read: bool) -> dict[str, str]:
        entries = self._entries(node, path, is_read=is_read)
        return {key: self._text(value, join(path, key), is_read=is_read) or "" for key, value in entries}

    def _text(self, node: Node, path: str, *, is_read: bool) -> str | None:
        """Return the text at *path*.

        None keeps an earlier value: the node is null, or of another type and not *is_read*.
        """
        if isinstance(node.value, str):
            return node.value
        if is_read and node.value is not None:
            self._problem("expected a string", path, node)
        return None

    def _problem(self, message: str, path: str, node: Node, hint: str | None = None) -> None:
        self._problems.append(Problem(message, Place(self._file, path, node.line), hint))


def decode_auth(text: str) -> tuple[str, str]:
    """Return username and password of an ``auth`` field; raises ValueError, which quotes nothing.

    As in Go's decoder, padding may be missing, and line ends are ignored. A password need not be text.
    """
    decoded = decode_base64(text, padded=text.strip().endswith("="))
    if decoded is None:
        raise ValueError("the auth field is not base64")
    username, colon, password = decoded.partition(b":")
    if not colon:
        raise ValueError("unable to parse the auth field: it has no colon between username and password")
    return text_of(username), text_of(password)


# --- secrets ---


def secret_credentials(secrets: Sequence[PullSecret]) -> list[Credentials]:
    """Return the credentials in pull secrets; raises `ConfigurationError` if the data does not match a secret's type.

    A secret whose type and key do not belong together is ignored, as by the kubelet.
    """
    return [credentials for secret in secrets if (credentials := _secret_credentials(secret)) is not None]


def _secret_credentials(secret: PullSecret) -> Credentials | None:
    key, has_auths = SECRET_FORMS.get(secret.type, ("", False))
    data = secret.data.get(key)
    if data is None:
        return None
    name = f"{secret.namespace}/{secret.name}"
    where = printable(f"secret {name}, {key}")
    config = parse_config_json(data, file=where) if has_auths else parse_dockercfg(data, file=where)
    return Credentials(config.logins.items(), Provenance(SourceKind.SECRET, name))


# --- the node's own file ---


def search_paths(directory: str | None = None) -> Iterator[str]:
    """Yield the paths where the kubelet looks for the node's file. *directory* is its own one."""
    home = os.path.expanduser("~")
    for name, places in (
        (CONFIG_JSON, (directory, os.curdir, os.path.join(home, ".docker"), "/.docker")),
        (DOCKERCFG, (directory, os.curdir, home, "/")),
    ):
        yield from (os.path.join(place, name) for place in places if place is not None)


def read_node_config(directory: str | None = None) -> DockerConfig:
    """Return the first readable file of `search_paths`; an empty configuration if there is none."""
    for path in search_paths(directory):
        try:
            with open(path, "rb") as file:
                data = file.read()
        except OSError:
            continue
        try:
            parse = parse_config_json if path.endswith(CONFIG_JSON) else parse_dockercfg
            return parse(data, file=path)
        except ConfigurationError as error:
            log.warning("%s is skipped: %s", path, error.cause, extra={"code": error.code})
    return DockerConfig()


class NodeDockerConfig:
    """The node's docker configuration, reloaded when it is older than *lifetime* seconds."""

    def __init__(
        self,
        directory: str | None = None,
        *,
        read: Callable[[], DockerConfig] | None = None,
        lifetime: float = LIFETIME_SECONDS,
        clock: Clock | None = None,
    ) -> None:
        self._read = read or (lambda: read_node_config(directory))
        self._lifetime = lifetime
        self._clock = clock or SYSTEM_CLOCK
        self._lock = threading.Lock()
        self._kept: tuple[Credentials, float] | None = None

    def credentials(self) -> Credentials:
        cached, now = self._kept, self._clock.monotonic()
        if cached is not None and now < cached[1]:
            return cached[0]
        with self._lock:
            if self._kept is None or self._kept is cached:
                config = self._read()
                source = Provenance(SourceKind.FILE, config.file or "")
                self._kept = (Credentials(config.logins.items(), source), now + self._lifetime)
            return self._kept[0]

    def forget(self, found: ImageCredential) -> bool:
        """Reload the file next time if *found* is in the current content."""
        cached = self._kept
        if cached is None or found.origin is not cached[0]:
            return False
        with self._lock:
            if self._kept is cached:
                self._kept = None
        return True
