"""The daemon's servers: the credential API over TLS for a gateway, and the Unix socket for local programs.

    POST /v1/credentials/<repository>  ->  a CredentialProviderResponse for that repository alone
    GET  /healthz                      ->  200

Clients of the API must present a certificate of the configured CA with one of the configured names: the gateway's. The
gateway's policy decides by path which user gets which credentials. So a path has only one valid form: a full,
normalized repository without tag, query and escapes. Anything else is a 400, because the policy did not authorize what
we would make of it. The method is POST, so that a policy that allows users to read everything grants no credentials.

Requests have no body. The gateway sends the requests of many users over one connection: unread bytes of one user's body
would be parsed as our next request, and its response would go to another user.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import socket
import socketserver
import ssl
import sys
import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from http.server import BaseHTTPRequestHandler
from typing import cast

from ostiary.core.clock import SYSTEM_CLOCK, Clock
from ostiary.core.text import printable
from ostiary.core.unix_socket import peer_user
from ostiary.core.watched_file import Fingerprint, fingerprint, is_settled
from ostiary.errors import ConfigurationError, ImageNameError, OstiaryError
from ostiary.keys.openssl import turn_off_resumption
from ostiary.registry.credentials import Credentials, ImageCredential
from ostiary.registry.daemon import protocol
from ostiary.registry.daemon.engine import CredentialDaemon
from ostiary.registry.image_name import parse_image_name
from ostiary.registry.keyring import Keyring, Lookup
from ostiary.wire.credential_provider import CREDENTIALS_PATH, V1, BasicAuth, CacheKeyType, Response, encode_response

USER_HEADER = "X-Remote-User"
MOST_CONNECTIONS = 64
IDLE_SECONDS = 60.0
HANDSHAKE_SECONDS = 10.0
LONGEST_NAME = 512
JSON = "application/json"

log = logging.getLogger("ostiary.registry")


@dataclass(frozen=True, slots=True)
class CredentialsReply:
    status: int
    body: bytes


def credentials_reply(keyring: Keyring, path: str) -> CredentialsReply:
    """Return the response to a POST of *path*, which is the request path, byte for byte."""
    name = path.removeprefix(CREDENTIALS_PATH)
    try:
        repository = (
            parse_image_name(name).repository if path.startswith(CREDENTIALS_PATH) and len(name) < LONGEST_NAME else ""
        )
    except ImageNameError:
        repository = ""
    if not repository or repository != name:
        wanted = f"; ask for {repository}" if repository else ""
        return _status(400, "BadRequest", f"the path does not end in the full name of a repository{wanted}")
    try:
        lookup = keyring.lookup(repository)
    except OstiaryError as error:
        log.warning("credentials for %s: %s", repository, error.summary, extra={"code": error.code})
        return _status(503, "ServiceUnavailable", "the credential providers could not be asked")
    login = _first_login(lookup)
    if login is None and lookup.failures:
        # An empty response would make a node pull without a credential, and hide the reason, which is in the log.
        return _status(503, "ServiceUnavailable", "a credential provider failed")
    auth = {} if login is None else {repository: BasicAuth(login.username, login.password)}
    # For this repository alone, even if the provider's response covers more: only this one was requested and
    # authorized.
    response = Response(CacheKeyType.IMAGE, _time_left(keyring, login), auth)
    return CredentialsReply(200, encode_response(response, api_version=V1))


def _first_login(lookup: Lookup) -> ImageCredential | None:
    return next((each for each in lookup if each.username or each.password), None)


def _time_left(keyring: Keyring, login: ImageCredential | None) -> timedelta:
    if login is None or not isinstance(login.origin, Credentials):
        return timedelta(0)
    seconds = max((each.cache.seconds_left_of(login.origin) for each in keyring.providers), default=0.0)
    return timedelta(seconds=int(seconds))


def _status(code: int, reason: str, message: str) -> CredentialsReply:
    fields = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": reason, "code": code}
    return CredentialsReply(code, json.dumps(fields | {"message": message}).encode())


# --- the server ---


class HttpApi:
    """Serves the credential API on *listener* from `start` to `close`, in its own threads.

    *context* returns the TLS context for the next connection, and *keyring* the keyring of the current configuration.
    """

    def __init__(
        self,
        listener: socket.socket,
        *,
        context: Callable[[], ssl.SSLContext],
        keyring: Callable[[], Keyring],
        clients: Iterable[str],
    ) -> None:
        self._server = _CredentialListener(listener, context, keyring, frozenset(clients))

    def start(self) -> None:
        threading.Thread(target=self._server.serve_forever, name="ostiary-registry-http", daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


def certificate_names(certificate: Mapping[str, object]) -> set[str]:
    """Return the names in a client certificate: its subject alternative names, or its common name if it has none."""
    alternatives = cast("Iterable[tuple[str, str]]", certificate.get("subjectAltName", ()))
    names = {value for kind, value in alternatives if kind in ("DNS", "URI", "email")}
    parts = cast("Iterable[Iterable[tuple[str, str]]]", certificate.get("subject", ()))
    subject = [value for part in parts for key, value in part if key == "commonName"]
    return names or set(subject)


class _CredentialListener(socketserver.ThreadingMixIn, socketserver.TCPServer):
    daemon_threads = True

    def __init__(
        self,
        listener: socket.socket,
        context: Callable[[], ssl.SSLContext],
        keyring: Callable[[], Keyring],
        clients: frozenset[str],
    ) -> None:
        super().__init__(listener.getsockname()[:2], _ApiHandler, bind_and_activate=False)
        self.socket.close()
        self.socket = listener
        self.tls, self.keyring, self.clients = context, keyring, clients
        self._places = threading.BoundedSemaphore(MOST_CONNECTIONS)

    def verify_request(self, request: object, client_address: object) -> bool:
        return self._places.acquire(blocking=False)

    def process_request(self, request: object, client_address: object) -> None:
        try:
            super().process_request(cast(socket.socket, request), cast("tuple[str, int]", client_address))
        except RuntimeError:
            # No thread could be started, so none releases the slot.
            self._places.release()
            raise

    def handle_error(self, request: object, client_address: object) -> None:
        log.error("a connection was not taken: %s", type(sys.exc_info()[1]).__name__)

    def process_request_thread(self, request: object, client_address: object) -> None:
        connection = cast(socket.socket, request)
        try:
            # The handshake runs in the thread, so that a client that does not complete it blocks no other.
            with suppress(OSError):
                connection.settimeout(HANDSHAKE_SECONDS)
                connection = encrypted = self.tls().wrap_socket(connection, server_side=True)
                # Before anything is read, so that other clients of that CA cannot occupy a slot.
                if self._may_ask(encrypted):
                    self.finish_request(connection, client_address)
        except Exception as error:
            log.error("a request ended with %s", type(error).__name__)
        finally:
            self.shutdown_request(connection)
            self._places.release()

    def _may_ask(self, connection: ssl.SSLSocket) -> bool:
        if connection.session_reused:
            # Session resumption is disabled where this interpreter supports it: on resumption the certificate is not
            # verified again.
            return False
        names = certificate_names(connection.getpeercert() or {})
        if names & self.clients:
            return True
        log.warning("a client was refused: its certificate is for %s", printable(", ".join(sorted(names))))
        return False


class _ApiHandler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = IDLE_SECONDS
    server: _CredentialListener

    def parse_request(self) -> bool:
        if not super().parse_request():
            return False
        lengths = self.headers.get_all("Content-Length", [])
        # Headers after a malformed line are not parsed, and may include a length.
        if self.headers.defects or "Transfer-Encoding" in self.headers or any(each.strip() != "0" for each in lengths):
            self._send(_status(400, "BadRequest", "the request must not have a body"))
            return False
        return True

    def handle_expect_100(self) -> bool:
        """Send no 100 Continue, because there must not be a body."""
        return True

    def do_GET(self) -> None:
        if self.path == "/healthz":
            self._send(CredentialsReply(200, b'{"ok": true}'))
        else:
            self._send(
                _status(
                    405 if self.path.startswith(CREDENTIALS_PATH) else 404,
                    "NotFound",
                    f"POST {CREDENTIALS_PATH}REPOSITORY",
                )
            )

    def do_POST(self) -> None:
        if not self.path.startswith(CREDENTIALS_PATH):
            self._send(_status(404, "NotFound", f"POST {CREDENTIALS_PATH}REPOSITORY"))
            return
        # Use the target as it was sent: `path` collapses leading slashes.
        target = self.requestline.split()[1]
        try:
            reply = credentials_reply(self.server.keyring(), target)
        except ConfigurationError as error:
            log.error("%s: %s", error.summary, error.cause, extra={"code": error.code})
            reply = _status(503, "ServiceUnavailable", "the provider configuration cannot be used")
        user = printable(self.headers.get(USER_HEADER, ""))[:LONGEST_NAME]
        log.info("credentials asked for %s by user %s: %d", printable(target)[:LONGEST_NAME], user, reply.status)
        self._send(reply)

    def _send(self, reply: CredentialsReply) -> None:
        self.send_response_only(reply.status)
        self.send_header("Content-Type", JSON)
        self.send_header("Content-Length", str(len(reply.body)))
        self.send_header("Cache-Control", "no-store")
        if reply.status != 200:
            # This also closes the connection.
            self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(reply.body)

    def log_message(self, format: str, *args: object) -> None:
        """Do nothing: relevant events are logged where they are decided."""


# The Unix socket. Only our own user and root may connect: responses are secrets, and requests make us run programs.
# Everything is bounded; a client that is turned away runs the provider itself.

MOST_SOCKET_CONNECTIONS = 1024
BACKLOG = 1024
# For the whole request, which the client sends as soon as it has connected.
QUESTION_SECONDS = 5.0
# How long a stop waits for running providers.
DRAIN_SECONDS = 10.0


class SocketServer:
    """Serves the Unix socket *listener* from `start` to `close`."""

    def __init__(self, daemon: CredentialDaemon, listener: socket.socket) -> None:
        self._daemon = daemon
        self._listener = listener
        self._users = frozenset({0, os.geteuid()})
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.Task[None]] = set()

    @property
    def connections(self) -> int:
        return len(self._open)

    async def start(self) -> None:
        if sys.version_info >= (3, 13):
            # The socket file is removed by its creator, which may be systemd.
            self._server = await asyncio.start_unix_server(
                self._serve, sock=self._listener, limit=protocol.LARGEST_TEXT, cleanup_socket=False
            )
        else:
            self._server = await asyncio.start_unix_server(
                self._serve, sock=self._listener, limit=protocol.LARGEST_TEXT
            )

    async def close(self) -> None:
        """Stop accepting requests, and wait up to `DRAIN_SECONDS` for those in flight."""
        assert self._server is not None
        self._server.close()
        if self._open:
            await asyncio.wait(self._open, timeout=DRAIN_SECONDS)
        for task in list(self._open):
            task.cancel()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._open.add(task)
        try:
            # A client that disconnected is not an error, and its response is cached for the next one.
            with suppress(OSError, asyncio.IncompleteReadError, TimeoutError):
                await self._converse(reader, writer)
        finally:
            self._open.discard(task)
            writer.close()

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        user = peer_user(writer.get_extra_info("socket"))
        if user not in self._users:
            log.warning("a process of user %d was refused at the socket", user)
            return
        if len(self._open) > MOST_SOCKET_CONNECTIONS:
            writer.write(protocol.refusal("too many ask at once"))
            return
        async with asyncio.timeout(QUESTION_SECONDS):
            question = await _read_question(reader)
        if question is None:
            writer.write(protocol.refusal("it does not know this question: the versions differ"))
            await writer.drain()
            return
        writer.write(protocol.ASKED)
        await writer.drain()
        writer.write(await self._daemon.answer(*question))
        await writer.drain()


async def _read_question(reader: asyncio.StreamReader) -> tuple[bytes, list[bytes]] | None:
    try:
        head = await reader.readuntil(b"\n")
    except asyncio.LimitOverrunError:
        return None
    parsed = protocol.question_head(head)
    if parsed is None:
        return None
    verb, lengths = parsed
    return verb, [await reader.readexactly(length) for length in lengths]


class DaemonTls:
    """The TLS context of the HTTP API, rebuilt when its files change, because a daemon outlives a certificate.

    *certificate* and *key* are the server's, and *client_ca* is the CA of the clients. Thread-safe.
    """

    def __init__(self, certificate: str, key: str, client_ca: str, *, clock: Clock = SYSTEM_CLOCK) -> None:
        self._files = (certificate, key, client_ca)
        self._clock = clock
        self._lock = threading.Lock()
        self._seen = self._look()
        self._context = self._build()

    def context(self) -> ssl.SSLContext:
        """Return the context for the next connection. Invalid files leave the old one active."""
        with self._lock:
            look = self._look()
            if look != self._seen or not is_settled(look, self._clock):
                try:
                    self._context = self._build()
                except ConfigurationError as error:
                    if look != self._seen:
                        log.error("%s; the old one stays in force: %s", error.summary, error.cause)
                self._seen = look
            return self._context

    def _look(self) -> tuple[Fingerprint | None, ...]:
        return tuple(fingerprint(file) for file in self._files)

    def _build(self) -> ssl.SSLContext:
        certificate, key, client_ca = self._files
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.verify_mode = ssl.CERT_REQUIRED
        # Otherwise a client whose certificate has expired could resume an earlier session.
        turn_off_resumption(context)
        try:
            context.load_cert_chain(certificate, key, password="")
            context.load_verify_locations(client_ca)
        except OSError as error:
            raise ConfigurationError(
                "the TLS files of the credential daemon cannot be used",
                cause=getattr(error, "reason", None) or error.strerror or str(error),
                where=", ".join(printable(file) for file in self._files),
                hint="a certificate with its key, and the authority of the clients, in PEM",
                code="registry-socket-unusable",
            ) from None
        return context
