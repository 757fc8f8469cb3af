"""Keeps the file with an AuthenticationConfiguration fresh: asks the gateway what was revoked, and writes what changed.

Called by ``ostiary issuer kubernetes --follow``. The gateway answers as soon as something is revoked. While it cannot
be asked, the file stays as it is: what it refuses, it goes on refusing.
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Callable
from contextlib import suppress

from ostiary.cli.exit_codes import OK
from ostiary.cli.gateway_http import GatewayHttp
from ostiary.cli.output import print_error, print_note
from ostiary.cli.token_file import token_text
from ostiary.core.text import fits_token_header
from ostiary.errors import ConfigurationError, OstiaryError, ProviderError
from ostiary.wire.ostiary_dev.revoked_credentials import RevokedCredentials, decode_revoked_credentials

PATH = "/webhooks/revoked-credentials"
# The gateway answers after 25 seconds if nothing happens.
SECONDS = 40.0
LARGEST_LIST = 8 * 1024 * 1024
RETRY_SECONDS = (1.0, 2.0, 5.0, 10.0)
# An API server builds all of its authenticators anew for every new file. The first revocation is written at once; those
# that follow on its heels are written together.
WRITTEN_APART_SECONDS = 3.0


class RevokedCredentialsSource:
    """The list of a gateway, asked with the token in *token_file*, which may be exchanged at any time."""

    def __init__(self, server: str, token_file: str, authorities_pem: str | None) -> None:
        self._http = GatewayHttp(server, authorities_pem=authorities_pem, seconds=SECONDS, largest=LARGEST_LIST)
        self._token_file = token_file

    def fetch(self, after: int | None = None) -> RevokedCredentials:
        """The list; with *after*, when there is a later revocation, or nothing has happened for a while."""
        token = token_text(self._token_file).strip()
        if not fits_token_header(token):
            raise ConfigurationError(
                "the file holds no token",
                cause="it is not one line of visible ASCII",
                where=self._token_file,
                code="token-file-unreadable",
            )
        path = PATH if after is None else f"{PATH}?after={after}"
        reply = self._http.ask("GET", path, headers={"Authorization": f"Bearer {token}"})
        if reply.status != 200:
            raise ProviderError(
                f"the gateway answered {reply.status}",
                cause=str(reply.fields.get("message", "it gave no reason")),
                where=self._http.server,
                hint=_HINTS.get(reply.status),
                code="gateway-refused",
            )
        cause = ""
        try:
            return decode_revoked_credentials(reply.fields)
        except ValueError as error:
            cause = str(error)
        raise self._http.not_understood(cause)


_HINTS = {
    401: "the token must be that of webhooks.callers.tokenFile of the gateway",
    404: "set webhooks.revocations: true in the gateway's configuration",
}


def follow(
    source: RevokedCredentialsSource,
    path: str,
    render: Callable[[RevokedCredentials], str],
    *,
    sleep: Callable[[float], None] = time.sleep,
    is_over: Callable[[], bool] = lambda: False,
) -> int:
    """Write the file whenever it changes. The first time must succeed: a mistake is told at once."""
    revoked = source.fetch()
    _write_if_changed(path, render(revoked))
    print_note(f"{path} is kept fresh")
    failures = 0
    while not is_over():
        try:
            revoked = source.fetch(revoked.head)
            if _write_if_changed(path, render(revoked)):
                sleep(WRITTEN_APART_SECONDS)
        except OstiaryError as error:
            if not failures:
                print_error(error)
                print_note("the file stays as it is until the gateway answers again")
            sleep(RETRY_SECONDS[min(failures, len(RETRY_SECONDS) - 1)])
            failures += 1
        else:
            if failures:
                print_note("the gateway answers again")
            failures = 0
    return OK


def _write_if_changed(path: str, text: str) -> bool:
    """An API server that reads at this moment sees the old file or the new one, whole; its permissions stay.

    Returns whether the file was another one before.
    """
    content = text.encode()
    with suppress(OSError), open(path, "rb") as file:
        if file.read() == content:
            return False
    new = f"{path}.{secrets.token_hex(4)}"
    cause = ""
    try:
        mode = os.stat(path).st_mode & 0o777 if os.path.exists(path) else 0o600
        descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            os.fchmod(descriptor, mode)
            file.write(content)
            file.flush()
            os.fsync(descriptor)
        os.replace(new, path)
        return True
    except OSError as error:
        cause = error.strerror or type(error).__name__
        with suppress(OSError):
            os.unlink(new)
    raise ConfigurationError("the file cannot be written", cause=cause, where=path, code="config-unreadable")
