"""The format of tokens: a prefix, 256 random bits in base62, and the CRC-32 of both in hex; and their digests.

Pure, except for the random bits.
"""

from __future__ import annotations

import re
import secrets
import string
from hashlib import sha256
from zlib import crc32

from ostiary.model import Secret

ACCESS_PREFIX = b"ost_"
RENEWAL_PREFIX = b"osr_"
BROWSER_PREFIX = b"osb_"
APPLICATION_PREFIX = b"osa_"
# Of API tokens, which are stored in files and variables for months: secret scanners must be able to distinguish them.
API_PREFIX = b"osp_"
# Prefixes of bearer tokens in requests.
PRESENTED_PREFIXES = (ACCESS_PREFIX, API_PREFIX)

_ALPHABET = (string.digits + string.ascii_letters).encode()
_EVEN = 256 - 256 % len(_ALPHABET)
_CHARACTERS, _UNEVEN = bytes(_ALPHABET[byte % len(_ALPHABET)] for byte in range(256)), bytes(range(_EVEN, 256))
_SECRET_LENGTH = 43  # 62**43 is just above 2**256
_CHECKSUM_LENGTH = 8
_PREFIX_LENGTH = len(ACCESS_PREFIX)
LENGTH = _PREFIX_LENGTH + _SECRET_LENGTH + _CHECKSUM_LENGTH
_SESSION_LENGTH = 22  # 62**22 is just above 2**128
_DIGEST = re.compile(r"[0-9a-f]{64}")


def new_token(prefix: bytes = ACCESS_PREFIX) -> Secret:
    """Return a new token: ``ost_[0-9A-Za-z]{43}[0-9a-f]{8}``.

    A double click selects all of it, and secret scanners can detect it.
    """
    body = prefix + _random_text(_SECRET_LENGTH).encode()
    return Secret((body + _checksum(body)).decode())


def well_formed(token: bytes, prefix: bytes | tuple[bytes, ...] = PRESENTED_PREFIXES) -> bool:
    """Whether *token* has a valid format. This is public knowledge, so an early response reveals nothing."""
    return (
        len(token) == LENGTH
        and token.startswith(prefix)
        and token[_PREFIX_LENGTH:].isalnum()
        and token[-_CHECKSUM_LENGTH:] == _checksum(token[:-_CHECKSUM_LENGTH])
    )


def digest(token: str | bytes) -> bytes:
    """Return what a store contains instead of *token*.

    Not keyed: 256 random bits cannot be guessed, so a key would protect nothing, and every replica and every operator's
    command would have to share it. Looking up a digest also needs no constant-time comparison.
    """
    return sha256(as_bytes(token)).digest()


def application_digest(token: str | bytes, application: str) -> bytes:
    """Like `digest`, for a token of one web application: at any other it is unknown."""
    return sha256(b"ostiary application\0" + application.encode() + b"\0" + as_bytes(token)).digest()


def as_bytes(token: str | bytes) -> bytes:
    return token if isinstance(token, bytes) else token.encode("utf-8", "surrogatepass")


def digest_hex(text: str) -> str:
    """Return the hex digest for an operator's input: a token of any kind, or already its digest.

    Raises `ValueError`, which does not quote the text: it may be a token with a missing character.
    """
    if is_digest_hex(text.lower()):
        return text.lower()
    token = as_bytes(text)
    if well_formed(token, (*PRESENTED_PREFIXES, RENEWAL_PREFIX, BROWSER_PREFIX)):
        return digest(token).hex()
    raise ValueError("it is neither a token nor the 64 hex digits of a token's digest")


def is_digest_hex(text: str) -> bool:
    return _DIGEST.fullmatch(text) is not None


def new_session_id() -> str:
    return _random_text(_SESSION_LENGTH)


def _checksum(body: bytes) -> bytes:
    return b"%08x" % crc32(body)


def _random_text(length: int) -> str:
    """Return *length* random characters. Bytes that would bias the distribution are skipped."""
    text = b""
    while len(text) < length:
        text += secrets.token_bytes(2 * length).translate(_CHARACTERS, _UNEVEN)
    return text[:length].decode()
