"""Sends what a source asks of a server, over TLS, bounded in time and size; and says in words why there is no reply."""

from __future__ import annotations

import ssl
from collections.abc import Mapping

from ostiary.core.net.outgoing import NO_REPLY, OutgoingHttp, reason_of
from ostiary.core.secrets.redact import redact
from ostiary.core.text import printable
from ostiary.errors import ConfigurationError

REPLY_SECONDS = 20.0
LARGEST_REPLY = 1 << 20
LARGEST_SECRET_FILE = 1 << 16


class NoReply(Exception):
    """There is no answer; the message says why, as the end of a sentence."""


def post(url: str, body: bytes, headers: Mapping[str, str], context: ssl.SSLContext) -> tuple[int, bytes]:
    """Status and body of the reply; raises `NoReply`. The scheme was checked when the configuration was read."""
    http = OutgoingHttp(context=context, seconds=REPLY_SECONDS, largest=LARGEST_REPLY)
    try:
        reply = http.send("POST", url, body, headers=headers)
    except NO_REPLY as error:
        why = _why(error)
    else:
        if reply.is_whole:
            return reply.status, reply.body
        why = f"answered with more than {LARGEST_REPLY} bytes"
    # Outside of the handler: the exception's traceback has the request in it, and that the token.
    raise NoReply(why)


def client_context(authority: str, *, of: str, certificate: str = "", key: str = "") -> ssl.SSLContext:
    """Trusts *authority*, a file, or the system's; shows *certificate*, if there is one. *of* is whose it is."""
    try:
        context = ssl.create_default_context(cafile=authority or None)
    except OSError:
        raise _unreadable(f"the certificate authority of {of} cannot be loaded", authority) from None
    if certificate:
        try:
            context.load_cert_chain(certificate, key or None, password="")
        except OSError:
            raise _unreadable(f"the client certificate for {of} cannot be loaded", certificate) from None
    return context


def secret_in_file(path: str, *, what: str) -> str:
    """The text of a file that holds a secret; raises `ConfigurationError`."""
    try:
        with open(path, encoding="utf-8") as file:
            return file.read(LARGEST_SECRET_FILE).strip()
    except (OSError, ValueError):
        raise ConfigurationError(f"{what} cannot be read", where=printable(path), code="config-unreadable") from None


def _unreadable(summary: str, path: str) -> ConfigurationError:
    hint = "it is a file of PEM certificates"
    return ConfigurationError(summary, where=printable(path), hint=hint, code="config-unreadable")


def _why(error: Exception) -> str:
    reason = reason_of(error)
    if isinstance(reason, TimeoutError):
        return "did not answer in time"
    if isinstance(reason, ssl.SSLCertVerificationError):
        return f"has a certificate that is not trusted: {redact(reason.verify_message)}"
    text = getattr(reason, "strerror", None) or type(reason).__name__
    return f"cannot be reached: {redact(str(text))}"
