"""TLS contexts that never change after they are built, from keys that are never written to disk.

Changing an SSLContext during a handshake in another thread crashes the interpreter, so a rotated certificate gets a new
context. And the `ssl` module loads keys from files only, so we pass it a file that exists only in memory.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeAlias, TypeVar

from ostiary.core.pem import certificates, private_key
from ostiary.core.platform.memory_files import in_memory_file
from ostiary.errors import TransportError
from ostiary.model import ClientCertificate, Secret

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer, StrOrBytesPath

    Password: TypeAlias = Callable[[], str | bytes | bytearray] | str | bytes | bytearray

_NO_PAIR = "the client certificate and key cannot be loaded as PEM, or are not a pair"


@dataclass(frozen=True, slots=True)
class TlsSettings:
    """How to verify the server. If `authorities_pem` is None, the system's CA certificates are used."""

    authorities_pem: str | None = None
    insecure: bool = False
    server_name: str | None = None


class SealedContext(ssl.SSLContext):
    """An SSLContext that HTTP libraries can use but not modify.

    It also sends and verifies `server_name` (kubeconfig's ``tls-server-name``) instead of the host that was dialled,
    because not all libraries have an option for it.
    """

    server_name: str | None = None
    _protocols: list[str] | None = None
    _sealed = False

    def __setattr__(self, name: str, value: object) -> None:
        # urllib3 sets these before every handshake, from options that do not know the cluster.
        if not (self._sealed and name in ("verify_mode", "check_hostname")):
            super().__setattr__(name, value)

    def wrap_socket(
        self,
        sock: socket.socket,
        server_side: bool = False,
        do_handshake_on_connect: bool = True,
        suppress_ragged_eofs: bool = True,
        server_hostname: str | bytes | None = None,
        session: ssl.SSLSession | None = None,
    ) -> ssl.SSLSocket:
        name = self._name(server_hostname)
        return super().wrap_socket(sock, server_side, do_handshake_on_connect, suppress_ragged_eofs, name, session)

    # Explicit parameters, as above: some libraries pass the name by position, others by keyword.
    def wrap_bio(
        self,
        incoming: ssl.MemoryBIO,
        outgoing: ssl.MemoryBIO,
        server_side: bool = False,
        server_hostname: str | bytes | None = None,
        session: ssl.SSLSession | None = None,
    ) -> ssl.SSLObject:
        return super().wrap_bio(incoming, outgoing, server_side, self._name(server_hostname), session)

    def _name(self, dialled: str | bytes | None) -> str | bytes | None:
        """Return the name that the server's certificate must have.

        The trailing dot of an FQDN is DNS syntax and in no certificate.
        """
        name = self.server_name or dialled
        return name.rstrip(b".") if isinstance(name, bytes) else name.rstrip(".") if name else name

    def set_alpn_protocols(self, alpn_protocols: Iterable[str]) -> None:
        # httpcore and urllib3 set the same list before every handshake. Setting it again would modify a context that
        # other threads are using.
        if list(alpn_protocols) != self._protocols:
            super().set_alpn_protocols(alpn_protocols)
            self._protocols = list(alpn_protocols)

    def load_verify_locations(
        self,
        cafile: StrOrBytesPath | None = None,
        capath: StrOrBytesPath | None = None,
        cadata: str | ReadableBuffer | None = None,
    ) -> None:
        # requests loads its own bundle of public CAs into any context it is given. Any of them could then issue a
        # certificate for a cluster that trusts only its own CA.
        if not self._sealed:
            super().load_verify_locations(cafile, capath, cadata)

    def load_default_certs(self, purpose: ssl.Purpose = ssl.Purpose.SERVER_AUTH) -> None:
        if not self._sealed:
            super().load_default_certs(purpose)

    def load_cert_chain(
        self,
        certfile: StrOrBytesPath,
        keyfile: StrOrBytesPath | None = None,
        password: Password | None = None,
    ) -> None:
        if not self._sealed:
            super().load_cert_chain(certfile, keyfile, password)

    def seal(self) -> None:
        self._sealed = True


ContextT = TypeVar("ContextT", bound=SealedContext)


def build_context(settings: TlsSettings, certificate: ClientCertificate | None = None) -> SealedContext:
    """Build a new context; raises `TransportError` if the settings are invalid."""
    return build_context_of(SealedContext, settings, certificate)


def build_context_of(
    kind: type[ContextT], settings: TlsSettings, certificate: ClientCertificate | None = None
) -> ContextT:
    """Like `build_context`, for a subclass chosen by the caller."""
    if settings.insecure and settings.authorities_pem is not None:
        raise TransportError(
            "the server's TLS settings contradict each other",
            cause="insecure-skip-tls-verify is true and a certificate authority is given as well",
            hint="remove one of the two; without insecure-skip-tls-verify the authority is checked",
        )
    context = kind(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.server_name = settings.server_name
    # As in Go, every certificate in the bundle is a trust anchor, including intermediate CAs.
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    if settings.insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    elif settings.authorities_pem is None:
        context.load_default_certs()
    else:
        _trust(context, settings.authorities_pem)
    if certificate is not None:
        _present(context, certificate)
    context.seal()
    return context


def parse_certificate(chain_pem: str, key_pem: str) -> ClientCertificate:
    """Check that certificate and key match, and read the validity; raises `ValueError` with a sentence."""
    certificate, key_pem = read_chain(chain_pem), private_key(key_pem)
    if not key_pem:
        raise ValueError(_NO_PAIR)
    certificate = replace(certificate, key_pem=Secret(key_pem))
    _present(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), certificate)
    return certificate


def read_chain(chain_pem: str) -> ClientCertificate:
    """Parse the certificate without its key; raises `ValueError` with a sentence."""
    # Imported here: it takes 30 ms, needed only if the credential is a certificate.
    from cryptography import x509

    # Formats that only OpenSSL reads, and not Go, would work here and fail with kubectl.
    chain_pem = certificates(chain_pem)
    try:
        leaf = x509.load_pem_x509_certificates(chain_pem.encode("utf-8", "replace"))[0]
        not_before, not_after = leaf.not_valid_before_utc, leaf.not_valid_after_utc
    except ValueError:
        raise ValueError("the client certificate is not a PEM certificate") from None
    return ClientCertificate(chain_pem, not_before=not_before, not_after=not_after)


def _trust(context: ssl.SSLContext, pem: str) -> None:
    try:
        # As in Go, blocks with headers are skipped. Without a certificate there is nothing to trust.
        context.load_verify_locations(cadata=certificates(pem, with_headers=False))
    except (ssl.SSLError, ValueError):
        raise TransportError(
            "the certificate authority of the server cannot be loaded",
            cause="certificate-authority is not a PEM certificate",
            hint="it starts with -----BEGIN CERTIFICATE-----; certificate-authority-data is its base64 form",
        ) from None


def _present(context: ssl.SSLContext, certificate: ClientCertificate) -> None:
    if certificate.device_key is not None:
        # Imported here: needed only for keys outside of this process.
        from ostiary.keys.openssl_provider import use_key

        with in_memory_file(certificate.chain_pem.encode(errors="replace")) as path:
            return use_key(context, path, certificate.device_key)
    # Text that is not UTF-8 is not PEM either. Encoding it strictly would raise an error that holds the key.
    chain, key = (text.encode(errors="replace") for text in (certificate.chain_pem, certificate.key_pem.reveal()))
    try:
        with in_memory_file(chain) as chain_path, in_memory_file(key) as key_path:
            context.load_cert_chain(chain_path, key_path, password=_refuse_password)
    except _KeyIsEncrypted:
        raise ValueError("the client key is encrypted with a passphrase, and there is no way to ask for it") from None
    except OSError as error:
        # This is an SSLError, but not for a pipe: there `ssl` reports the seek that OpenSSL tried instead of its
        # reason.
        if getattr(error, "reason", None) == "KEY_VALUES_MISMATCH":
            raise ValueError("the client key does not belong to the client certificate") from None
        raise ValueError(_NO_PAIR) from None


class _KeyIsEncrypted(Exception):
    pass


def _refuse_password() -> str:
    # Otherwise OpenSSL would prompt for a password on the terminal of the calling program.
    raise _KeyIsEncrypted
