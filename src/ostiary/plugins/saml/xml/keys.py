"""Our own key with its certificate, from files, and what a key must be like to be believed.

Called by the provider, and by the reader of metadata. The files are looked at again at every use.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from ostiary.core.clock import SYSTEM_CLOCK, Clock
from ostiary.core.config import Fields
from ostiary.core.watched_file import WatchedFile
from ostiary.errors import ConfigurationError, ProviderError
from ostiary.model import Place, Problem
from ostiary.plugins.saml.xml.signatures import PrivateKey

LEAST_RSA_BITS = 2048
_CURVES = (ec.SECP256R1, ec.SECP384R1, ec.SECP521R1)
MAX_FILE = 64 * 1024


@dataclass(frozen=True, slots=True)
class KeyPair:
    key: PrivateKey = field(repr=False)
    certificate: x509.Certificate

    @property
    def decryption_key(self) -> rsa.RSAPrivateKey | None:
        """For what is encrypted to us, which only an RSA key can open."""
        return self.key if isinstance(self.key, rsa.RSAPrivateKey) else None


def check_strength(key: object) -> None:
    """Raises ValueError if nobody should believe what is signed with *key*."""
    if isinstance(key, rsa.RSAPublicKey):
        if key.key_size < LEAST_RSA_BITS:
            raise ValueError(f"an RSA key has {key.key_size} bits, and needs {LEAST_RSA_BITS}")
    elif not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, _CURVES):
        raise ValueError("a key is neither RSA nor of one of the curves P-256, P-384 and P-521")


class OwnKey:
    def __init__(
        self, key: str | os.PathLike[str], certificate: str | os.PathLike[str], *, clock: Clock = SYSTEM_CLOCK
    ) -> None:
        self._key = WatchedFile(key, _read_key, clock=clock)
        self._certificate = WatchedFile(certificate, read_certificate, clock=clock)

    def current(self) -> KeyPair:
        """Raises `ProviderError` while the files cannot be used."""
        try:
            return self._pair()
        except ConfigurationError as error:
            cause = error.cause or error.summary
            raise ProviderError("the key of the gateway cannot be read", cause=cause, where=error.where) from None

    def check(self, fields: Fields) -> None:
        """Read it once, and note what is wrong where the settings name the files."""
        self._key.check(fields, "keyFile")
        self._certificate.check(fields, "certificateFile")
        try:
            self._pair()
        except ConfigurationError as error:
            # What is wrong with one of the files is noted already.
            if not error.problems:
                fields.problem(error.summary, "certificateFile")

    def _pair(self) -> KeyPair:
        pair = KeyPair(self._key.current(), self._certificate.current())
        if pair.key.public_key() != pair.certificate.public_key():
            raise ConfigurationError("the certificate is not that of the key")
        return pair


def read_certificate(path: str) -> x509.Certificate:
    try:
        with Path(path).open("rb") as file:
            certificate = x509.load_pem_x509_certificate(file.read(MAX_FILE))
        check_strength(certificate.public_key())
    except OSError as error:
        why = error.strerror or "it cannot be opened"
    except ValueError as error:
        why = str(error) if "key" in str(error) else "it is not a certificate (PEM)"
    else:
        return certificate
    raise ConfigurationError("the certificate cannot be read", problems=[Problem(why, Place(path))])


def _read_key(path: str) -> PrivateKey:
    why = "it is not a private key (PEM, without a password): RSA, or on the curve P-256, P-384 or P-521"
    try:
        with Path(path).open("rb") as file:
            key = load_pem_private_key(file.read(MAX_FILE), None)
        if isinstance(key, (rsa.RSAPrivateKey, ec.EllipticCurvePrivateKey)):
            check_strength(key.public_key())
            return key
    except OSError as error:
        why = error.strerror or "it cannot be opened"
    except (ValueError, TypeError):
        pass
    # Raised outside of the handler: a library's exception may carry parts of the key along.
    raise ConfigurationError("the key cannot be read", problems=[Problem(why, Place(path))])
