"""The program ``ostiary-credential-provider``: one credential provider for many registries, by configuration alone.

    request on stdin -> the sources whose matchImages match, in order -> the first that has a login -> response

    apiVersion: ostiary/v1
    kind: ImageCredentialSources
    sources:
    - matchImages: ["*.example.com"]
      helper: docker-credential-pass             # or authFile, or command, or tokenExchange
      cacheDuration: 10m

Run by the kubelet with ``--config FILE`` among the provider's args. A source that has nothing lets the next one be
asked; one that fails ends the run with its error, since "nothing" would be kept and the reason lost.
"""

from __future__ import annotations

import http.client
import json
import os
import ssl
import sys
import urllib.error
import urllib.request
from base64 import b64encode
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import IO, Any
from urllib.parse import quote, urlencode, urlsplit

from ostiary.core.clock import SYSTEM_CLOCK
from ostiary.core.config import Document, Fields, Reading, parse, read
from ostiary.core.duration import DurationError, parse_duration
from ostiary.core.process import Ending, Limits, Outcome, Stderr, find_executable, run
from ostiary.core.redact import redact, tail
from ostiary.core.text import printable
from ostiary.errors import (
    AnswerInvalid,
    ConfigurationError,
    CredentialError,
    OstiaryError,
    PluginFailed,
    PluginNotFound,
)
from ostiary.model import Secret
from ostiary.registry.credentials import Found
from ostiary.registry.docker_store import HUB_SERVER, PREFIX, TOKEN_USERNAME, DockerHelper, DockerStore
from ostiary.registry.go_url import UnparsableAddress, parse_address
from ostiary.registry.image_match import matches
from ostiary.registry.image_name import DOCKER_HUB
from ostiary.wire.credential_provider import (
    BasicAuth,
    CacheKeyType,
    Request,
    Response,
    decode_request,
    encode_response,
)

API_VERSION = "ostiary/v1"
KIND = "ImageCredentialSources"
PROGRAM = "ostiary-credential-provider"
USAGE = f"usage: {PROGRAM} --config FILE"
IMAGE_VARIABLE = "OSTIARY_IMAGE"
OK, FAILED, WRONG_USAGE = 0, 1, 2

GRANT_TYPE = "urn:ietf:params:oauth:grant-type:token-exchange"
JWT = "urn:ietf:params:oauth:token-type:jwt"
# RFC 6749, section 5.2, and RFC 8693, section 2.2.2. Nothing else of a refusal is quoted.
EXCHANGE_ERRORS = (
    "invalid_request",
    "invalid_client",
    "invalid_grant",
    "unauthorized_client",
    "unsupported_grant_type",
    "invalid_scope",
    "invalid_target",
)
EXCHANGE_SECONDS = 20.0
LARGEST_REPLY = 1 << 20
LARGEST_REQUEST = 1 << 20
LARGEST_SECRET_FILE = 1 << 16
STDERR_SHOWN = 2048
# The kubelet kills a provider after a minute, and only the provider: what we started must have ended before.
LIMITS = Limits(seconds=45.0)
LOOPBACK = ("localhost", "127.0.0.1", "::1")
# How much of a token's life is left when the kubelet asks again.
MARGIN = timedelta(seconds=30)


# --- the configuration ---


@dataclass(frozen=True, slots=True)
class Helper:
    """A docker credential helper on the PATH, by its suffix."""

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
    """RFC 8693: the pod's service account token for one that the registry takes as the password of *username*."""

    url: str
    username: str
    # The form's own names: audience, scope, resource, requested_token_type.
    form: Mapping[str, str] = field(default_factory=dict)
    client_id: str = ""
    client_secret_file: str = ""
    certificate_authority: str = ""


Origin = Helper | AuthFile | Command | TokenExchange


@dataclass(frozen=True, slots=True)
class Source:
    """Where the logins of some images come from, and how long the kubelet may keep them."""

    match_images: tuple[str, ...]
    origin: Origin
    cache_key_type: CacheKeyType
    cache_duration: timedelta | None = None


def load(path: str | os.PathLike[str]) -> tuple[Source, ...]:
    """The sources of a configuration file; raises `ConfigurationError` with every mistake and its place."""
    return _sources(read(path))


def loads(text: str | bytes, *, file: str | None = None) -> tuple[Source, ...]:
    """`load` from memory."""
    return _sources(parse(text, file=file))


def _sources(document: Document) -> tuple[Source, ...]:
    reading = Reading(document)
    root = reading.root
    for name, wanted in (("apiVersion", API_VERSION), ("kind", KIND)):
        if root.string(name) != wanted:
            root.problem(f"it is not {wanted}", name, f"write {name}: {wanted}")
    found = [_source(fields) for fields in root.sections("sources")]
    if not found:
        root.problem("there is no source", "sources", "list at least one under sources")
    reading.finish("the configuration of the credential provider cannot be used", strict=True)
    return tuple(source for source in found if source is not None)


def _source(fields: Fields) -> Source | None:
    patterns = fields.strings("matchImages")
    if not patterns:
        fields.problem("matchImages is missing", "matchImages", "list the images this source is for")
    for pattern in patterns:
        try:
            parse_address(pattern)
        except UnparsableAddress as error:
            fields.problem(f"a pattern cannot be parsed: {error}", "matchImages")
    origins = [origin for origin in (read_origin(fields) for read_origin in _ORIGINS) if origin is not None]
    duration = _duration(fields)
    if len(origins) != 1:
        message = "a source needs one of helper, authFile, command and tokenExchange"
        fields.problem(message if not origins else f"{message}, and not several", None)
        fields.ignore("cacheKeyType")
        return None
    (origin,) = origins
    return Source(patterns, origin, _cache_key_type(fields, origin), duration)


def _helper(fields: Fields) -> Helper | None:
    name = fields.optional_string("helper")
    if name is not None and (not name.removeprefix(PREFIX) or os.path.dirname(name)):
        fields.problem("it is not the name of a docker credential helper", "helper", f"write {PREFIX}NAME, or NAME")
    return None if name is None else Helper(name.removeprefix(PREFIX))


def _auth_file(fields: Fields) -> AuthFile | None:
    path = fields.optional_string("authFile")
    if path is not None and not os.path.isabs(path):
        # The kubelet's working directory is nobody's choice.
        fields.problem("it is not an absolute path", "authFile", "begin it with /")
    return None if path is None else AuthFile(path)


def _command(fields: Fields) -> Command | None:
    if "command" not in fields:
        return None
    argv = fields.strings("command")
    if not argv or not argv[0]:
        fields.problem("it has no words", "command", "list the program and its arguments")
    return Command(argv)


def _token_exchange(fields: Fields) -> TokenExchange | None:
    section = fields.optional_section("tokenExchange")
    if section is None:
        return None
    exchange = TokenExchange(
        url=_required(section, "url"),
        username=_required(section, "username"),
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
        client_secret_file=section.string("clientSecretFile"),
        certificate_authority=section.string("certificateAuthority"),
    )
    if exchange.url and not is_confidential(exchange.url):
        section.problem("it is not an https address", "url", "the token is sent there: use https")
    if exchange.client_secret_file and not exchange.client_id:
        section.problem("a client secret needs a client", "clientSecretFile", "add clientID")
    return exchange


_ORIGINS: tuple[Callable[[Fields], Origin | None], ...] = (_helper, _auth_file, _command, _token_exchange)


def _required(fields: Fields, key: str) -> str:
    text = fields.string(key)
    if not text:
        fields.problem(f"{key} is missing", key)
    return text


def _duration(fields: Fields) -> timedelta | None:
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


def _cache_key_type(fields: Fields, origin: Origin) -> CacheKeyType:
    by_image = isinstance(origin, (AuthFile, Command))
    default = CacheKeyType.IMAGE if by_image else CacheKeyType.REGISTRY
    text = fields.optional_string("cacheKeyType")
    if text is None:
        return default
    if text not in (CacheKeyType.IMAGE.value, CacheKeyType.REGISTRY.value):
        hint = "use Image or Registry; Global would keep the login of one registry for the images of all others"
        fields.problem("it is not known here", "cacheKeyType", hint)
        return default
    chosen = CacheKeyType(text)
    if chosen is CacheKeyType.REGISTRY and isinstance(origin, AuthFile):
        hint = "leave it out: the file may hold another login for another image of the same registry"
        fields.problem("an auth file is kept by image", "cacheKeyType", hint)
    return chosen


def is_confidential(url: str) -> bool:
    """Whether a token may be sent to *url*: over TLS, or to this machine."""
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError:
        return False
    return bool(host) and (parts.scheme == "https" or (parts.scheme == "http" and host in LOOPBACK))


# --- one request ---


def respond(request: Request, sources: Iterable[Source]) -> Response:
    """What *sources* say to *request*; raises `CredentialError` or `ConfigurationError`."""
    for source in sources:
        if not any(matches(pattern, request.image) for pattern in source.match_images):
            continue
        found = _ask(source, request)
        if found is not None:
            basic, lifetime = found
            durations = [one for one in (source.cache_duration, lifetime) if one is not None]
            key = _key(request.image, source.cache_key_type)
            return Response(source.cache_key_type, min(durations, default=None), {key: basic})
    # Not kept: somebody who is given access should have it at once.
    return Response(CacheKeyType.IMAGE, timedelta(0))


def _ask(source: Source, request: Request) -> tuple[BasicAuth, timedelta | None] | None:
    """A login, and how long it holds if that is known."""
    registry = request.image.partition("/")[0]
    origin = source.origin
    if isinstance(origin, TokenExchange):
        return exchange_token(origin, request)
    if isinstance(origin, Command):
        basic = _run_command(origin, request.image, registry)
        return None if basic is None else (basic, None)
    if isinstance(origin, Helper):
        login = DockerHelper(origin.suffix, limits=LIMITS).get(_server(registry))
        found = None if login is None else (login.username, login.password, login.identity_token)
    else:
        one = DockerStore(origin.path, limits=LIMITS).find(request.image)
        found = None if one is None else _login_of(one)
    if found is None:
        return None
    username, password, identity_token = found
    if identity_token:
        raise _identity_token(request.image)
    return BasicAuth(username, password), None


def _login_of(found: Found) -> tuple[str, Secret, Secret]:
    return found.username, found.password, found.identity_token


def _server(registry: str) -> str:
    return HUB_SERVER if registry == DOCKER_HUB else registry


def _key(image: str, kept_for: CacheKeyType) -> str:
    registry, _, path = image.partition("/")
    # As a key, an image whose path begins like the registry's API would not match itself.
    whole = kept_for is CacheKeyType.REGISTRY or path.startswith(("v1/", "v2/"))
    return registry if whole else image


def _identity_token(image: str) -> AnswerInvalid:
    return AnswerInvalid(
        _summary(image),
        cause="the login is an identity token, and the kubelet's protocol has only usernames and passwords",
        hint="use a username and a password, or an access token in place of the password",
        code="docker-helper-answer-invalid",
    )


def _summary(image: str) -> str:
    return f'no credential for image "{printable(image)}"'


# --- a command ---


def _run_command(command: Command, image: str, registry: str) -> BasicAuth | None:
    program = command.argv[0]
    executable = find_executable(program)
    try:
        if executable is None:
            raise FileNotFoundError
        outcome = run(
            executable,
            command.argv,
            env={**os.environ, IMAGE_VARIABLE: image},
            stdin=_server(registry).encode(),
            stderr=Stderr.CAPTURE,
            limits=LIMITS,
        )
    except (OSError, ValueError) as error:
        why = "does not exist" if isinstance(error, FileNotFoundError) else "cannot be executed"
        raise PluginNotFound(
            _summary(image),
            cause=f"the command {printable(program)} {why}",
            hint="give its whole path: the kubelet's PATH may not be yours",
            code="docker-helper-not-found",
        ) from None
    if outcome.ending is not Ending.EXITED or outcome.exit_code != 0:
        raise PluginFailed(
            _summary(image),
            exit_code=outcome.exit_code if outcome.ending is Ending.EXITED else -1,
            cause=f"the command {printable(program)} failed: {_ending(outcome)}{_said(outcome)}",
            hint="run it by hand to see why",
            code="docker-helper-failed",
        )
    return _printed_login(outcome.stdout, program, image)


def _printed_login(stdout: bytes, program: str, image: str) -> BasicAuth | None:
    fields = _json_object(stdout)
    pairs = [(fields.get(name), fields.get(word)) for name, word in (("Username", "Secret"), ("username", "password"))]
    for username, password in pairs:
        if isinstance(username, str) and isinstance(password, str):
            if username == TOKEN_USERNAME:
                raise _identity_token(image)
            return BasicAuth(username, Secret(password)) if username or password else None
    raise AnswerInvalid(
        _summary(image),
        cause=f"what the command {printable(program)} printed is not a login",
        hint='print {"username": "...", "password": "..."} on stdout and nothing else there',
        code="docker-helper-answer-invalid",
    )


def _ending(outcome: Outcome) -> str:
    return f"exit code {outcome.exit_code}" if outcome.ending is Ending.EXITED else outcome.ending.value


def _said(outcome: Outcome) -> str:
    secrets = outcome.stdout.decode("utf-8", "replace").split()
    text = redact(tail(outcome.stderr_tail, STDERR_SHOWN), secrets=secrets).strip()
    return f"; it said:\n{text}" if text else ""


def _json_object(data: bytes) -> Mapping[str, Any]:
    """The JSON object in *data*; an empty one if there is none."""
    try:
        found = json.loads(data.decode("utf-8"))
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


# --- a token exchange ---


def exchange_token(exchange: TokenExchange, request: Request) -> tuple[BasicAuth, timedelta | None]:
    """Exchange the service account token of *request*; raises `CredentialError`."""
    subject = request.service_account_token
    if not subject:
        raise ConfigurationError(
            _summary(request.image),
            cause="the request has no service account token, and a tokenExchange needs one",
            hint="add tokenAttributes to this provider in the kubelet's CredentialProviderConfig",
            code="credential-provider-request-invalid",
        )
    fields = {"grant_type": GRANT_TYPE, "subject_token": subject.reveal(), "subject_token_type": JWT, **exchange.form}
    headers = {"Content-Type": "application/x-www-form-urlencoded", "Accept": "application/json"}
    if exchange.client_id and not exchange.client_secret_file:
        fields["client_id"] = exchange.client_id
    elif exchange.client_id:
        headers["Authorization"] = _client_header(exchange)
    try:
        status, body = _post(exchange, urlencode(fields).encode(), headers)
    except _NoReply as error:
        raise _exchange_failed(request.image, exchange, str(error)) from None
    reply = _json_object(body)
    token = reply.get("access_token")
    if status != 200 or not isinstance(token, str) or not token:
        refusal = reply.get("error")
        known = f": {refusal}" if refusal in EXCHANGE_ERRORS else ""
        why = f"answered with status {status}{known}" if status != 200 else "answered without an access_token"
        raise _exchange_failed(request.image, exchange, why)
    return BasicAuth(exchange.username, Secret(token)), _lifetime(reply.get("expires_in"))


def _client_header(exchange: TokenExchange) -> str:
    try:
        with open(exchange.client_secret_file, encoding="utf-8") as file:
            secret = file.read(LARGEST_SECRET_FILE).strip()
    except (OSError, ValueError):
        raise ConfigurationError(
            "the client secret cannot be read", where=printable(exchange.client_secret_file), code="config-unreadable"
        ) from None
    # RFC 6749, section 2.3.1: both halves are encoded as in a form, before they are joined.
    pair = f"{quote(exchange.client_id, safe='')}:{quote(secret, safe='')}"
    return "Basic " + b64encode(pair.encode()).decode()


def _lifetime(value: object) -> timedelta | None:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 10**9:
        return None
    return max(timedelta(0), timedelta(seconds=value) - MARGIN)


def _exchange_failed(image: str, exchange: TokenExchange, why: str) -> CredentialError:
    return CredentialError(
        _summary(image),
        cause=f"the token exchange at {printable(urlsplit(exchange.url).netloc.rpartition('@')[2])} {why}",
        hint="see that the audience of tokenAttributes is one that this server takes",
        code="token-exchange-failed",
    )


class _NoReply(Exception):
    """There is no answer; the message says why, as the end of a sentence."""


class _Stay(urllib.request.HTTPRedirectHandler):
    """A server that may have the token must not be able to send it on to another one."""

    def redirect_request(self, *_: object) -> None:
        return None


def _post(exchange: TokenExchange, body: bytes, headers: Mapping[str, str]) -> tuple[int, bytes]:
    # The scheme was checked when the configuration was read.
    request = urllib.request.Request(exchange.url, body, dict(headers), method="POST")  # noqa: S310
    opener = urllib.request.build_opener(urllib.request.HTTPSHandler(context=_context(exchange)), _Stay())
    deadline = SYSTEM_CLOCK.monotonic() + EXCHANGE_SECONDS
    try:
        try:
            response = opener.open(request, timeout=EXCHANGE_SECONDS)
        except urllib.error.HTTPError as refusal:
            response = refusal
        with response:
            return int(response.status), _read_reply(response, deadline)
    except (OSError, http.client.HTTPException) as error:
        why = _why(error)
    # Outside of the handler: the exception's traceback has the request in it, and that the token.
    raise _NoReply(why)


def _context(exchange: TokenExchange) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=exchange.certificate_authority or None)
    except OSError:
        raise ConfigurationError(
            "the certificate authority of the token exchange cannot be loaded",
            where=printable(exchange.certificate_authority),
            hint="it is a file of PEM certificates",
            code="config-unreadable",
        ) from None


def _read_reply(response: IO[bytes], deadline: float) -> bytes:
    data = bytearray()
    while chunk := response.read(8192):
        data += chunk
        if len(data) > LARGEST_REPLY:
            raise _NoReply(f"answered with more than {LARGEST_REPLY} bytes")
        if SYSTEM_CLOCK.monotonic() > deadline:
            raise _NoReply("did not end its answer in time")
    return bytes(data)


def _why(error: Exception) -> str:
    reason = getattr(error, "reason", None) or error
    if isinstance(reason, TimeoutError):
        return "did not answer in time"
    if isinstance(reason, ssl.SSLCertVerificationError):
        return f"has a certificate that is not trusted: {redact(reason.verify_message)}"
    text = getattr(reason, "strerror", None) or type(reason).__name__
    return f"cannot be reached: {redact(str(text))}"


# --- the program ---


def main(argv: list[str] | None = None) -> int:
    """Answer one request of the kubelet and return the exit code."""
    path = _config_path(sys.argv[1:] if argv is None else argv)
    if path is None:
        print(USAGE, file=sys.stderr)  # noqa: T201
        return WRONG_USAGE
    try:
        sources = load(path)
        request = decode_request(sys.stdin.buffer.read(LARGEST_REQUEST))
        data = encode_response(respond(request, sources), api_version=request.api_version)
    except OstiaryError as error:
        print(f"{PROGRAM}: {printable(str(error))}", file=sys.stderr)  # noqa: T201
        return FAILED
    except Exception as error:
        # A mistake of ours; a traceback would go into the kubelet's log, with who knows what in it.
        print(f"{PROGRAM}: {type(error).__name__}: {redact(str(error))}", file=sys.stderr)  # noqa: T201
        return FAILED
    # At once and whole, and only when nothing can go wrong any more.
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()
    return OK


def _config_path(argv: list[str]) -> str | None:
    match argv:
        case ["--config", path]:
            return path
        case [word] if word.startswith("--config="):
            return word.removeprefix("--config=")
    return None


if __name__ == "__main__":
    sys.exit(main())
