"""What binds a proof of identity to one TLS connection: ``tls-server-end-point`` of RFC 5929. Pure.

Both ends compute it from the server's certificate: the gateway for ``Negotiate``, and the command line that answers it.
A proof that was caught on a connection to another server, and passed on from there, then proves nothing.
"""

from __future__ import annotations

import hashlib
import warnings

_PREFIX = b"tls-server-end-point:"
# RFC 5929, section 4.1.
_REPLACED = {"md5": "sha256", "sha1": "sha256"}


def server_end_point(certificate: bytes) -> bytes | None:
    """The application data of the binding to the server with this *certificate* (DER).

    None if there is none: the signature of the certificate has no hash of its own, as with Ed25519.
    """
    # Imported here: most connections need no binding.
    from cryptography import x509
    from cryptography.exceptions import UnsupportedAlgorithm

    try:
        with warnings.catch_warnings():
            # Only the algorithm matters here; what today's rules say of the rest does not.
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
