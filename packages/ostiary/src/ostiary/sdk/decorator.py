"""The decorator for exec plugins: it turns a function into a complete program.

read the exec info -> call the function -> encode -> validate the output -> print it
"""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TypeAlias

from ostiary.core.clock import SYSTEM_CLOCK, Clock
from ostiary.errors import AnswerInvalid, OstiaryError
from ostiary.keys.address import parse_address
from ostiary.model import ClientCertificate, Secret
from ostiary.sdk.exec_info import ExecInfo, load_from_env
from ostiary.sdk.program import PluginProgram, await_result
from ostiary.wire.client_authentication import AnswerRefused, ExecAnswer, decode_answer, encode_answer

# Results of a plugin's function.


@dataclass(frozen=True, slots=True)
class Token:
    """A bearer token. It expires after *expires_in*, at *expires_at*, or never."""

    text: str | Secret = field(repr=False)
    expires_in: timedelta | None = field(default=None, kw_only=True)
    expires_at: datetime | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        _check_expiry(self)


@dataclass(frozen=True, slots=True)
class Certificate:
    """A client certificate chain and its key, both in PEM. It expires when given, or else with the certificate.

    Instead of the key, pass its address (``pkcs11:...``) for a device key. ostiary's client uses such a key for
    signing; kubectl does not support such addresses.
    """

    chain_pem: str
    key_pem: str | Secret = field(default="", repr=False)
    key_address: str = field(default="", kw_only=True)
    expires_in: timedelta | None = field(default=None, kw_only=True)
    expires_at: datetime | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        _check_expiry(self)
        if bool(self.key_pem) == bool(self.key_address):
            raise ValueError("a certificate has a key or the address of one: give one of key_pem and key_address")


Result: TypeAlias = "Token | Certificate | tuple[Token, Certificate]"


class SignInRefused(OstiaryError):
    """Raise this to deny the sign-in. The user sees only *summary*, *cause* and *hint*."""

    default_code = "sign-in-refused"


def answer_of(result: object, *, now: datetime) -> ExecAnswer:
    """Return the wire form of *result*. Raises `AnswerInvalid` if no client could use it."""
    parts = result if isinstance(result, tuple) else (result,)
    tokens = [part for part in parts if isinstance(part, Token)]
    certificates = [part for part in parts if isinstance(part, Certificate)]
    if len(tokens) + len(certificates) != len(parts) or not parts or max(len(tokens), len(certificates)) > 1:
        kinds = ", ".join(type(part).__name__ for part in parts)
        raise unusable(
            f"its function returned {kinds or 'nothing'}", hint="return a Token, a Certificate, or one of each"
        )
    pair = _pair(certificates[0]) if certificates else None
    moments = [*_moments(tokens + certificates, now), *_ends(certificates, pair)]
    expires_at = min(moments, default=None)
    if expires_at is not None and expires_at <= now:
        raise unusable("the credential has expired already", hint="fetch a new one instead of a cached one")
    return ExecAnswer(
        token=_secret(tokens[0].text) if tokens else None,
        certificate_pem=pair.chain_pem if pair else None,
        key_pem=(pair.key_pem or None) if pair else None,
        expires_at=expires_at,
        key_address=(certificates[0].key_address or None) if certificates else None,
    )


def unusable(cause: str, *, hint: str) -> AnswerInvalid:
    return AnswerInvalid("this plugin has no usable answer", cause=cause, hint=hint)


def _check_expiry(part: Token | Certificate) -> None:
    if part.expires_in is not None and part.expires_at is not None:
        raise ValueError("expires_in and expires_at cannot be combined: keep one of them")
    if part.expires_at is not None and part.expires_at.tzinfo is None:
        raise ValueError("expires_at has no time zone: nobody could tell when that is")


def _moments(parts: list[Token | Certificate], now: datetime) -> Iterator[datetime]:
    for part in parts:
        if part.expires_at is not None:
            yield part.expires_at
        elif part.expires_in is not None:
            yield now + part.expires_in


def _ends(certificates: list[Certificate], pair: ClientCertificate | None) -> Iterator[datetime]:
    # Clients check only the expiry of the credential, and would continue to use an expired certificate.
    has_expiry = any(part.expires_in is not None or part.expires_at is not None for part in certificates)
    if pair is not None and pair.not_after is not None and not has_expiry:
        yield pair.not_after


def _pair(certificate: Certificate) -> ClientCertificate:
    # Lazy import: TLS takes longer to import than the rest of a plugin that returns a token.
    from ostiary.core.tls import parse_certificate, read_chain

    try:
        if certificate.key_address:
            parse_address(certificate.key_address)
            return read_chain(certificate.chain_pem)
        return parse_certificate(certificate.chain_pem, _secret(certificate.key_pem).reveal())
    except ValueError as error:
        raise unusable(str(error), hint="return a PEM certificate and the PEM key that belongs to it") from None


def _secret(text: str | Secret) -> Secret:
    return text if isinstance(text, Secret) else Secret(text)


Function: TypeAlias = "Callable[[ExecInfo], Result | Awaitable[Result]]"


def exec_plugin(function: Function) -> Program:
    """Decorate ``def main(info)`` or ``async def main(info)``, which returns a `Token` or a `Certificate`."""
    return Program(function)


class Program(PluginProgram):
    """A plugin that runs once when called: ``main()``. `answer` returns the output without printing it."""

    __name__: str
    __wrapped__: Function

    def __init__(self, function: Function) -> None:
        self._function = function
        functools.update_wrapper(self, function)

    def answer(self, environ: Mapping[str, str], *, clock: Clock = SYSTEM_CLOCK) -> str:
        """Return the output for a client that sets *environ*. Raises errors unchanged. For tests of plugins."""
        info = load_from_env(environ)
        answer = answer_of(await_result(self._function(info)), now=clock.now())
        text = encode_answer(answer, api_version=info.api_version, as_proposed=info.as_proposed)
        if not _is_utf8(text):
            raise unusable("its answer is not UTF-8 text", hint="return text that can be printed")
        try:
            # Validate the output with the decoder of our client.
            decode_answer(text.encode(), api_version=info.api_version)
        except AnswerRefused as refused:
            raise unusable(refused.cause, hint=refused.hint) from None
        return text


def _is_utf8(text: str) -> bool:
    # Not by encoding: the exception of the encoder contains the text.
    return not any("\ud800" <= char <= "\udfff" for char in text)
