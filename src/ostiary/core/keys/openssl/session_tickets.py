"""Whether the TLS sessions of a server can be resumed, and what their tickets are sealed with.

Called by whoever makes the context of a listener. `ssl` lets any client resume, and each context seals tickets with
keys of its own, so that a client which reaches another worker shakes hands in full.
"""

from __future__ import annotations

import hashlib
import hmac
import ssl

from ostiary.core.keys.openssl.library import context_pointer, load
from ostiary.errors import KeyUnusable

# ssl.h and tls1.h
_SET_CACHE_MODE, _CACHE_OFF = 44, 0
_SET_TICKET_KEYS = 59
_LABEL = b"ostiary session tickets"
# Of two, the default, a client that connects in turn uses one; each takes a tenth of a handshake.
TICKETS = 1


def turn_off_resumption(context: ssl.SSLContext) -> None:
    """Let nobody resume a session of *context*.

    A resumed session has the certificate that the client once presented, and nobody looks whether that has expired
    since, or whether its authority still counts. Where OpenSSL cannot be reached, TLS 1.2 can still resume by the
    numbers of sessions: whoever relies on certificates must refuse what is resumed.
    """
    context.options |= ssl.OP_NO_TICKET
    context.num_tickets = 0
    _turn_off_cache(context)


def seal_tickets(context: ssl.SSLContext, secret: bytes, *, purpose: bytes) -> bool:
    """Seal the tickets of *context* with keys made of *secret*; False where this interpreter cannot do it.

    Every context with the same *secret* and *purpose* accepts them, in this process or another. Must not be called
    while another thread shakes hands with *context*.
    """
    context.num_tickets = TICKETS
    _turn_off_cache(context)
    try:
        library = load()
        pointer = context_pointer(library, context)
    except KeyUnusable:
        return False
    size = library.SSL_CTX_ctrl(pointer, _SET_TICKET_KEYS, 0, None)
    keys = _expand(secret, purpose, size)
    return bool(library.SSL_CTX_ctrl(pointer, _SET_TICKET_KEYS, len(keys), keys))


def _turn_off_cache(context: ssl.SSLContext) -> None:
    """Keep no sessions: tickets need none, and clients of TLS 1.2 without tickets could fill it."""
    try:
        library = load()
        library.SSL_CTX_ctrl(context_pointer(library, context), _SET_CACHE_MODE, _CACHE_OFF, None)
    except KeyUnusable:
        # Then it stays as OpenSSL bounds it.
        pass


def _expand(secret: bytes, purpose: bytes, size: int) -> bytes:
    """HKDF-Expand (RFC 5869, 2.3)."""
    keys, block = b"", b""
    for number in range(1, -(-size // hashlib.sha512().digest_size) + 1):
        block = hmac.digest(secret, block + _LABEL + purpose + bytes([number]), "sha512")
        keys += block
    return keys[:size]
