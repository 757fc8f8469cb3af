"""``ostiary issuer kubernetes``: the configuration of a kube-apiserver that trusts the gateway's JWTs."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable

from ostiary.cli.arguments import UsageError
from ostiary.cli.authorities import authorities
from ostiary.cli.exit_codes import OK
from ostiary.cli.gateway.choice import config_path, load
from ostiary.cli.issuer.follow import RevokedCredentialsSource, follow
from ostiary.cli.output import print_note
from ostiary.core.config import Json, read
from ostiary.core.config.edit import dump
from ostiary.errors import ConfigurationError
from ostiary.wire.apiserver_config import authentication_configuration, authorization_configuration
from ostiary.wire.ostiary_dev.revoked_credentials import RevokedCredentials, with_audiences

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
