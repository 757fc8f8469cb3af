"""The configuration of ``ostiary-credential-provider``: image patterns, and where their logins come from."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from urllib.parse import urlsplit

from ostiary.core.duration import DurationError, parse_duration
from ostiary.core.loopback import is_loopback
from ostiary.core.yaml import ConfigReader, ConfigSection, Document, parse, read
from ostiary.registry.docker_helper_protocol import PREFIX
from ostiary.registry.image_name import UnparsableAddress, parse_address
from ostiary.wire.credential_provider import CacheKeyType

API_VERSION = "ostiary/v1"
KIND = "ImageCredentialSources"


@dataclass(frozen=True, slots=True)
class Helper:
    """A docker credential helper on PATH, by its suffix."""

    suffix: str


@dataclass(frozen=True, slots=True)
class AuthFile:
    """A ``config.json`` or ``auth.json``, with the helpers it names."""

    path: str


@dataclass(frozen=True, slots=True)
class Command:
    """A command that prints a login as JSON. The registry is on its stdin and the image in $OSTIARY_IMAGE."""

    argv: tuple[str, ...] = field(repr=False)


@dataclass(frozen=True, slots=True)
class TokenExchange:
    """Exchange of the pod's service account token for the registry password of *username* (RFC 8693)."""

    url: str
    username: str
    # Form parameters by name: audience, scope, resource, requested_token_type.
    form: Mapping[str, str] = field(default_factory=dict)
    client_id: str = ""
    client_secret_file: str = ""
    certificate_authority: str = ""


@dataclass(frozen=True, slots=True)
class CredentialServer:
    """The credential server of a cluster, called with this node's identity."""

    url: str
    token_file: str = ""
    client_certificate: str = ""
    client_key: str = ""
    certificate_authority: str = ""


Origin = Helper | AuthFile | Command | TokenExchange | CredentialServer


@dataclass(frozen=True, slots=True)
class LoginSource:
    """Where the logins of some images come from, and how long the kubelet may cache them.

    With `hosts_dir`, containerd's directory of mirrors, the login is for the host that containerd contacts first,
    because containerd sends that host the credential of the image's own name.
    """

    match_images: tuple[str, ...]
    origin: Origin
    cache_key_type: CacheKeyType
    cache_duration: timedelta | None = None
    hosts_dir: str = ""


def load(path: str | os.PathLike[str]) -> tuple[LoginSource, ...]:
    """Load the sources from a configuration file; raises `ConfigurationError` with every error and its position.

    Relative paths are resolved from the file: the kubelet's working directory is arbitrary.
    """
    return _sources(read(path), os.path.dirname(os.path.abspath(path)))


def loads(text: str | bytes, *, file: str | None = None) -> tuple[LoginSource, ...]:
    """Like `load`, from memory. There is no folder from which relative paths could be resolved."""
    return _sources(parse(text, file=file), None)


def _sources(document: Document, folder: str | None) -> tuple[LoginSource, ...]:
    reading = ConfigReader(document)
    root = reading.root
    for name, expected in (("apiVersion", API_VERSION), ("kind", KIND)):
        if root.string(name) != expected:
            root.problem(f"it is not {expected}", name, f"write {name}: {expected}")
    sources = [_source(fields, folder) for fields in root.sections("sources")]
    if not sources:
        root.problem("there is no source", "sources", "list at least one under sources")
    reading.finish("the configuration of the credential provider cannot be used", strict=True)
    return tuple(source for source in sources if source is not None)


def _source(fields: ConfigSection, folder: str | None) -> LoginSource | None:
    patterns = fields.strings("matchImages")
    if not patterns:
        fields.problem("matchImages is missing", "matchImages", "list the images this source is for")
    for pattern in patterns:
        try:
            parse_address(pattern)
        except UnparsableAddress as error:
            fields.problem(f"a pattern cannot be parsed: {error}", "matchImages")
    origins = [origin for origin in (read_origin(fields, folder) for read_origin in _ORIGINS) if origin is not None]
    duration = _duration(fields)
    hosts_dir = _path(fields, "hostsDir", folder) or ""
    if len(origins) != 1:
        message = "a source needs one of helper, authFile, command, tokenExchange and server"
        fields.problem(message if not origins else f"{message}, and not several", None)
        fields.ignore("cacheKeyType")
        return None
    (origin,) = origins
    return LoginSource(patterns, origin, _cache_key_type(fields, origin), duration, hosts_dir)


def _path(fields: ConfigSection, key: str, folder: str | None) -> str | None:
    path = fields.optional_string(key)
    if not path:
        return None
    if folder is None and not os.path.isabs(path):
        fields.problem("it is not an absolute path", key, "begin it with /")
    return os.path.join(folder or "", path)


def _helper(fields: ConfigSection, folder: str | None) -> Helper | None:
    name = fields.optional_string("helper")
    if name is not None and (not name.removeprefix(PREFIX) or os.path.dirname(name)):
        fields.problem("it is not the name of a docker credential helper", "helper", f"write {PREFIX}NAME, or NAME")
    return None if name is None else Helper(name.removeprefix(PREFIX))


def _auth_file(fields: ConfigSection, folder: str | None) -> AuthFile | None:
    path = _path(fields, "authFile", folder)
    return None if path is None else AuthFile(path)


def _command(fields: ConfigSection, folder: str | None) -> Command | None:
    if "command" not in fields:
        return None
    argv = fields.strings("command")
    if not argv or not argv[0]:
        fields.problem("it has no words", "command", "list the program and its arguments")
    return Command(argv)


def _token_exchange(fields: ConfigSection, folder: str | None) -> TokenExchange | None:
    section = fields.optional_section("tokenExchange")
    if section is None:
        return None
    exchange = TokenExchange(
        url=_required_text(section, "url"),
        username=_required_text(section, "username"),
        form={
            name: text
            for name, key in (
                ("audience", "audience"),
                ("scope", "scope"),
                ("resource", "resource"),
                ("requested_token_type", "requestedTokenType"),
            )
            if (text := section.string(key))
        },
        client_id=section.string("clientID"),
        client_secret_file=_path(section, "clientSecretFile", folder) or "",
        certificate_authority=_path(section, "certificateAuthority", folder) or "",
    )
    if exchange.url and not is_confidential(exchange.url):
        section.problem("it is not an https address", "url", "the token is sent there: use https")
    if exchange.client_secret_file and not exchange.client_id:
        section.problem("a client secret needs a client", "clientSecretFile", "add clientID")
    return exchange


def _server(fields: ConfigSection, folder: str | None) -> CredentialServer | None:
    section = fields.optional_section("server")
    if section is None:
        return None
    server = CredentialServer(
        url=_required_text(section, "url"),
        token_file=_path(section, "tokenFile", folder) or "",
        client_certificate=_path(section, "clientCertificate", folder) or "",
        client_key=_path(section, "clientKey", folder) or "",
        certificate_authority=_path(section, "certificateAuthority", folder) or "",
    )
    if server.url and not is_confidential(server.url):
        section.problem("it is not an https address", "url", "credentials come from there: use https")
    if server.client_key and not server.client_certificate:
        section.problem("a client key needs a certificate", "clientKey", "add clientCertificate")
    if not server.token_file and not server.client_certificate:
        section.problem("this node has nothing to show", None, "add tokenFile, or clientCertificate and clientKey")
    return server


_ORIGINS: tuple[Callable[[ConfigSection, str | None], Origin | None], ...] = (
    _helper,
    _auth_file,
    _command,
    _token_exchange,
    _server,
)


def _required_text(fields: ConfigSection, key: str) -> str:
    text = fields.string(key)
    if not text:
        fields.problem(f"{key} is missing", key)
    return text


def _duration(fields: ConfigSection) -> timedelta | None:
    text = fields.optional_string("cacheDuration")
    if text is None:
        return None
    try:
        duration = parse_duration(text)
    except DurationError as error:
        fields.problem(str(error), "cacheDuration", error.hint)
        return None
    if duration < timedelta(0):
        fields.problem("it must be greater than or equal to 0", "cacheDuration")
    return duration


def _cache_key_type(fields: ConfigSection, origin: Origin) -> CacheKeyType:
    by_image = isinstance(origin, (AuthFile, Command, CredentialServer))
    default = CacheKeyType.IMAGE if by_image else CacheKeyType.REGISTRY
    text = fields.optional_string("cacheKeyType")
    if text is None:
        return default
    if text not in (CacheKeyType.IMAGE.value, CacheKeyType.REGISTRY.value):
        hint = "use Image or Registry; Global would keep the login of one registry for the images of all others"
        fields.problem("unknown value", "cacheKeyType", hint)
        return default
    key_type = CacheKeyType(text)
    if key_type is CacheKeyType.REGISTRY and isinstance(origin, AuthFile):
        hint = "leave it out: the file may hold another login for another image of the same registry"
        fields.problem("an auth file is kept by image", "cacheKeyType", hint)
    if key_type is CacheKeyType.REGISTRY and isinstance(origin, CredentialServer):
        hint = "leave it out: whether this node may have the credentials is decided for each image"
        fields.problem("what a server answers is kept by image", "cacheKeyType", hint)
    return key_type


def is_confidential(url: str) -> bool:
    """Return whether a token may be sent to *url*: over TLS, or to this machine."""
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError:
        return False
    return bool(host) and (parts.scheme == "https" or (parts.scheme == "http" and is_loopback(host or "")))
