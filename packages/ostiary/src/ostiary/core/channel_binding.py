"""TLS channel binding ``tls-server-end-point`` (RFC 5929). Pure.

The gateway and the command line both compute it from the server's certificate for ``Negotiate``. It binds a proof of
identity to one TLS connection, so that a proof captured on a connection to another server cannot be relayed.
"""

from __future__ import annotations

import hashlib
import warnings

_PREFIX = b"tls-server-end-point:"
# RFC 5929, section 4.1.
_REPLACED = {"md5": "sha256", "sha1": "sha256"}


def server_end_point(certificate: bytes) -> bytes | None:
    """Return the channel binding data for the server with this *certificate* (DER).

    None if it is undefined: the certificate's signature algorithm has no hash of its own, as with Ed25519.
    """
    # Imported here: most connections need no channel binding.
    from cryptography import x509
    from cryptography.exceptions import UnsupportedAlgorithm

    try:
        with warnings.catch_warnings():
            # Only the algorithm matters here, not whether the rest of the certificate meets current rules.
            warnings.simplefilter("ignore")
            algorithm = x509.load_der_x509_certificate(certificate).signature_hash_algorithm
    except (ValueError, UnsupportedAlgorithm):
        return None
    if algorithm is None:
        return None
    name = _REPLACED.get(algorithm.name, algorithm.name)
    try:
        return _PREFIX + hashlib.new(name, certificate).digest()
    except ValueError:
        return None
