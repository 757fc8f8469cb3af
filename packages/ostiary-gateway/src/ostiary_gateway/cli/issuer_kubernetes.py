"""``ostiary-gateway issuer kubernetes``: the AuthenticationConfiguration of a kube-apiserver that trusts our JWTs.

With ``--follow`` it queries the gateway for revocations and updates the file. While the gateway is unavailable, the
file is unchanged: what it denies stays denied.
"""

from __future__ import annotations

import argparse
import os
import secrets
import sys
import time
from collections.abc import Callable
from contextlib import suppress

from ostiary.cli.arguments import UsageError
from ostiary.cli.authorities import authorities
from ostiary.cli.exit_codes import OK
from ostiary.cli.files import token_text
from ostiary.cli.gateway_http import GatewayHttp
from ostiary.cli.output import print_error, print_note
from ostiary.core.text import fits_token_header
from ostiary.core.yaml import Json, read
from ostiary.core.yaml.edit import dump
from ostiary.errors import ConfigurationError, OstiaryError, ProviderError
from ostiary_gateway.cli.options import config_path, load
from ostiary_gateway.wire.apiserver_config import authentication_configuration, authorization_configuration
from ostiary_gateway.wire.revoked_credentials import RevokedCredentials, decode_revoked_credentials, with_audiences

PATH = "/webhooks/revoked-credentials"
# The gateway responds after 25 seconds without a revocation.
SECONDS = 40.0
LARGEST_LIST = 8 * 1024 * 1024
RETRY_SECONDS = (1.0, 2.0, 5.0, 10.0)
# An API server rebuilds all of its authenticators for every new file. The first revocation is written immediately;
# those that follow within this time are written together.
WRITTEN_APART_SECONDS = 3.0


class RevokedCredentialsSource:
    """The list of a gateway, fetched with the token in *token_file*, which may be replaced at any time."""

    def __init__(self, server: str, token_file: str, authorities_pem: str | None) -> None:
        self._http = GatewayHttp(server, authorities_pem=authorities_pem, seconds=SECONDS, largest=LARGEST_LIST)
        self._token_file = token_file

    def fetch(self, after: int | None = None) -> RevokedCredentials:
        """Return the list; with *after*, wait for a later revocation or a timeout."""
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
    """Write the file whenever it changes. The first fetch must succeed, so that errors are reported immediately."""
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
    """Replace the file atomically and preserve its permissions. Return whether it changed.

    An API server that reads at this moment sees either the old or the new file, complete.
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


Render = Callable[[RevokedCredentials], str]


def run(arguments: argparse.Namespace) -> int:
    _check(arguments)
    if arguments.server is not None:
        authorities_pem = authorities(arguments.ca)
        source = RevokedCredentialsSource(arguments.server, arguments.token_file, authorities_pem)
        render = _rendering(arguments, authorities_pem)
        if arguments.follow is not None:
            return follow(source, arguments.follow, render)
        text = render(source.fetch())
    else:
        revoked, authorities_pem = _from_config(arguments)
        text = _rendering(arguments, authorities_pem)(revoked)
    sys.stdout.write(text)
    return OK


def _check(arguments: argparse.Namespace) -> None:
    if arguments.server is None:
        if arguments.token_file is not None or arguments.follow is not None:
            raise UsageError("--token-file and --follow need --server")
    elif arguments.config is not None:
        raise UsageError("--config and --server cannot be combined", hint="leave one of them out")
    elif arguments.token_file is None:
        raise UsageError("--server needs --token-file", hint="the file of webhooks.callers.tokenFile of the gateway")
    if arguments.webhook is not None and arguments.follow is not None:
        raise UsageError("--webhook and --follow cannot be combined", hint="the webhook needs no fresh file")


def _from_config(arguments: argparse.Namespace) -> tuple[RevokedCredentials, str | None]:
    config = load(arguments)
    if config.issuer is None:
        raise ConfigurationError(
            "this gateway signs no JWTs",
            cause="there is no section issuer",
            where=config_path(arguments),
            hint="add issuer.audiences and issuer.keys: docs/reference/gateway-configuration.md#issuer",
            code="config-invalid",
        )
    if not config.webhooks.revocations:
        print_note("webhooks.revocations is not set: a revoked JWT stays valid until it expires")
    revoked = RevokedCredentials(config.issuer_url, config.issuer.audiences)
    return revoked, authorities(arguments.ca) or config.authorities_pem


def _rendering(arguments: argparse.Namespace, authorities_pem: str | None) -> Render:
    base = _base(arguments.base)
    has_warned = False

    def render(revoked: RevokedCredentials) -> str:
        nonlocal has_warned
        credentials = _with_chosen_audiences(revoked, arguments.audience)
        if len(credentials.audiences) > 1 and not arguments.audience and not has_warned:
            has_warned = True
            print_note("JWTs for any audience of the gateway are accepted: name this cluster's own with --audience")
        if arguments.webhook is not None:
            return dump(
                authorization_configuration(
                    credentials.issuer, kubeconfig=arguments.webhook, failure_policy=arguments.failure_policy
                )
            )
        return dump(
            authentication_configuration(
                credentials,
                authorities_pem=authorities_pem or "",
                discovery_url=arguments.discovery_url or "",
                base=base,
            )
        )

    return render


def _with_chosen_audiences(revoked: RevokedCredentials, audiences: list[str]) -> RevokedCredentials:
    unknown = [audience for audience in audiences if audience not in revoked.audiences]
    if unknown:
        raise UsageError(
            f"the gateway issues no JWTs for the audience {unknown[0]}",
            hint=f"its issuer.audiences are {', '.join(revoked.audiences)}",
        )
    return with_audiences(revoked, tuple(audiences)) if audiences else revoked


def _base(path: str | None) -> Json:
    if path is None:
        return None
    document = read(path).value
    kind = document.get("kind") if isinstance(document, dict) else None
    if kind != "AuthenticationConfiguration":
        raise ConfigurationError(
            "the file of --base cannot be used",
            cause="its kind is not AuthenticationConfiguration",
            where=path,
            code="config-invalid",
        )
    return document
