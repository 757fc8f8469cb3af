"""One connection to a directory: bind, search, close. It blocks, so `LdapDirectory` uses it in threads.

    connect, TLS  ->  bind  ->  search ...  ->  perhaps another bind  ->  close

Every step has a timeout. A rejected password is a result; any other failure is a `ProviderError`. L8: TLS comes before
the first bind, with the certificate verified against the host name, and no bind has an empty password, which
directories treat as an anonymous bind and accept.
"""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

import ldap

from ostiary.errors import ProviderError
from ostiary.model import Secret
from ostiary_gateway.providers.ldap.settings import LdapServer, SearchAccount

if TYPE_CHECKING:
    from ldap.ldapobject import LDAPObject

MAX_CAUSE = 200
# Maximum number of concurrent queries, and of values in one query.
BATCH = 32

_TLS_1_2 = 0x303


@dataclass(frozen=True, slots=True)
class LdapEntry:
    """An entry of the directory. The names in `attributes` are lower-case."""

    dn: str
    attributes: Mapping[str, tuple[bytes, ...]]

    def texts(self, name: str) -> tuple[str, ...]:
        """Return the values that are text."""
        texts = (_text(value) for value in self.attributes.get(name.lower(), ()))
        return tuple(text for text in texts if text)


@dataclass(frozen=True, slots=True)
class Search:
    """One query. `limit` is the maximum number of entries; 0 means all."""

    base: str
    filter: str
    attributes: tuple[str, ...]
    only_base: bool = False
    limit: int = 0


class TooManyEntries(Exception):
    """A search matched more entries than its limit."""


class NoSuchEntry(Exception):
    """The base of a search does not exist, or is not a valid DN."""


class LdapConnection:
    """A connection from `open_connection`, for one thread."""

    def __init__(self, handle: LDAPObject, server: LdapServer) -> None:
        self._handle = handle
        self._server = server

    def bind_account(self, account: SearchAccount) -> None:
        """Bind as the search account. A rejected password is a `ProviderError`: the error is the operator's."""
        if not self.bind(account.dn, account.password()):
            hint = "compare bindDN and bindPasswordFile with the directory"
            raise server_failure(self._server, "it refuses the password of the search account", hint)

    def bind(self, dn: str, password: Secret) -> bool:
        """Bind as *dn* and return whether the password was accepted."""
        if dn == "" or not password:
            return False
        with _explain_errors(self._server):
            try:
                self._handle.simple_bind_s(dn, password.reveal())
            except ldap.INVALID_CREDENTIALS:
                return False
        return True

    def search(self, search: Search) -> list[LdapEntry]:
        (entries,) = self.search_all([search])
        return entries

    def search_all(self, searches: Sequence[Search]) -> list[list[LdapEntry]]:
        """Run the searches concurrently and return their results in order."""
        answers: list[list[LdapEntry]] = []
        with _explain_errors(self._server):
            for start in range(0, len(searches), BATCH):
                message_ids = [self._send(search) for search in searches[start : start + BATCH]]
                answers += [self._receive(number) for number in message_ids]
        return answers

    def _send(self, search: Search) -> int:
        number: int = self._handle.search_ext(
            search.base,
            ldap.SCOPE_BASE if search.only_base else ldap.SCOPE_SUBTREE,
            search.filter,
            list(search.attributes),
            timeout=self._server.timeout,
            sizelimit=search.limit,
        )
        return number

    def _receive(self, number: int) -> list[LdapEntry]:
        try:
            _, rows = self._handle.result(number, all=1, timeout=self._server.timeout)
        except ldap.SIZELIMIT_EXCEEDED:
            raise TooManyEntries from None
        except (ldap.NO_SUCH_OBJECT, ldap.INVALID_DN_SYNTAX):
            raise NoSuchEntry from None
        # A row without a DN is a referral to another server, which is not followed.
        return [_entry(dn, attributes) for dn, attributes in rows or () if dn]


@contextmanager
def open_connection(server: LdapServer) -> Iterator[LdapConnection]:
    """Open a connection without a bind. It uses TLS, unless the settings allow plain text over loopback."""
    handle = None
    try:
        with _explain_errors(server):
            handle = _open(server)
        yield LdapConnection(handle, server)
    finally:
        if handle is not None:
            _close(handle)


def server_failure(server: LdapServer, cause: str, hint: str | None = None) -> ProviderError:
    return ProviderError("the directory is unavailable", cause=cause, where=server.url, hint=hint)


# --- connecting ---


def _open(server: LdapServer) -> LDAPObject:
    if server.start_tls:
        return _open_with_start_tls(server)
    if server.has_tls:
        _knock(server)
    handle = ldap.initialize(server.uri())
    try:
        _set_options(handle, server)
    except BaseException:
        _close(handle)
        raise
    return handle


def _open_with_start_tls(server: LdapServer) -> LDAPObject:
    with socket.create_connection((server.host, server.port), server.connect_timeout) as connection:
        connection.settimeout(None)
        # The library verifies the host name of the URL, so the URL gets `server_name`, and the library a connected
        # socket.
        handle = ldap.initialize(server.uri(server.server_name or None), fileno=connection.dup().detach())
        try:
            _set_options(handle, server)
            with _limit_time(connection, server.connect_timeout + server.timeout):
                handle.start_tls_s()
        except BaseException:
            _close(handle)
            raise
    return handle


@contextmanager
def _limit_time(connection: socket.socket, seconds: float) -> Iterator[None]:
    """Shut the connection down after that time: the library waits for the server's TLS handshake without a limit."""
    timer = threading.Timer(seconds, _shut, [connection])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        # The timer may be shutting the socket down right now. Wait, or its number could be reused for another socket.
        timer.join()


def _shut(connection: socket.socket) -> None:
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


def _knock(server: LdapServer) -> None:
    """Raise `OSError` unless the server completes a TLS handshake in time, with a certificate for its name.

    In many builds the library waits forever for a server that accepts a connection and sends nothing, and reports no
    reason for rejecting a certificate. It verifies its own connection again; this one carries no data.
    """
    context = ssl.create_default_context(cafile=_authorities(server))
    with (
        socket.create_connection((server.host, server.port), server.connect_timeout) as connection,
        context.wrap_socket(connection, server_hostname=server.host),
    ):
        pass


def _set_options(handle: LDAPObject, server: LdapServer) -> None:
    handle.protocol_version = ldap.VERSION3
    # Following a referral would send the password to a server that the directory chooses.
    handle.set_option(ldap.OPT_REFERRALS, 0)
    handle.set_option(ldap.OPT_NETWORK_TIMEOUT, server.connect_timeout)
    handle.set_option(ldap.OPT_TIMEOUT, server.timeout)
    handle.timeout = server.timeout
    if server.has_tls:
        handle.set_option(ldap.OPT_X_TLS_REQUIRE_CERT, ldap.OPT_X_TLS_DEMAND)
        handle.set_option(ldap.OPT_X_TLS_PROTOCOL_MIN, _TLS_1_2)
        # Set explicitly, because an ldap.conf or an environment variable could name others.
        handle.set_option(ldap.OPT_X_TLS_CACERTFILE, _authorities(server))
        # Must be last: it applies the options above.
        handle.set_option(ldap.OPT_X_TLS_NEWCTX, 0)


def _authorities(server: LdapServer) -> str:
    paths = ssl.get_default_verify_paths()
    return str(server.ca or paths.cafile or paths.openssl_cafile)


def _close(handle: LDAPObject) -> None:
    # The server may have closed it already.
    with suppress(ldap.LDAPError):
        handle.unbind_s()


@contextmanager
def _explain_errors(server: LdapServer) -> Iterator[None]:
    """Convert errors of the library and the directory to `ProviderError`."""
    try:
        yield
        return
    except ldap.LDAPError as error:
        cause = _cause(error)
    except ssl.SSLCertVerificationError as error:
        cause = f"its certificate is not trusted: {error.verify_message}"
    except TimeoutError:
        cause = "it does not answer in time"
    except OSError as error:
        cause = error.strerror or "it cannot be reached"
    except ValueError:
        cause = "the library cannot use a setting"
    # Raised outside of the handler, so that the library's exception is not chained.
    raise server_failure(server, cause)


def _cause(error: ldap.LDAPError) -> str:
    details = error.args[0] if error.args and isinstance(error.args[0], dict) else {}
    parts = [str(details.get(key) or "") for key in ("desc", "info")]
    text = ": ".join(part for part in parts if part) or type(error).__name__
    return "".join(char if char.isprintable() else " " for char in text)[:MAX_CAUSE].strip()


# --- reading ---


def _entry(dn: str, attributes: Mapping[str, Sequence[bytes]]) -> LdapEntry:
    return LdapEntry(dn, {name.lower(): tuple(values) for name, values in attributes.items()})


def _text(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return ""
