"""``ostiary impersonation-role``: what a cluster must allow the gateway itself, as manifests."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from ostiary.cli import OK
from ostiary.cli.arguments import UsageError
from ostiary.cli.gateway_choice import add_config, config_path, load, run_async
from ostiary.cli.output import print_note
from ostiary.errors import ConfigurationError

if TYPE_CHECKING:
    from ostiary.gateway.settings import GatewayConfig
    from ostiary.interfaces.authorization import Subject

DESCRIPTION = """\
Print the role and binding that a gateway with identity: impersonation needs in the cluster behind it, made from its
policy: it may be any user, only in groups that the policy mentions, and only for the verbs and resources that the
policy allows somebody. It can never be system:masters. Print it again when the policy has changed.

That needs constrained impersonation, which Kubernetes has by default since 1.36. For older clusters --legacy prints
the classic rules, which limit whom the gateway can be, and not what it does then.
"""
EPILOG = """\
examples:
  ostiary impersonation-role --config gateway.yaml | kubectl apply -f -
  ostiary impersonation-role --service-account auth/gateway --legacy
  ostiary impersonation-role --subject-user gateway.example.com --user alice --user bob
"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.description, parser.epilog = DESCRIPTION, EPILOG
    parser.add_argument("--legacy", action="store_true", help="for clusters without constrained impersonation")
    parser.add_argument(
        "--name", default="ostiary-gateway", metavar="NAME", help="of the objects (default: %(default)s)"
    )
    parser.add_argument(
        "--service-account",
        default="ostiary/ostiary",
        metavar="NAMESPACE/NAME",
        help="what the gateway is in the cluster (default: %(default)s)",
    )
    parser.add_argument("--subject-user", metavar="NAME", help="the same, where it has a client certificate")
    parser.add_argument(
        "--user",
        action="append",
        default=[],
        metavar="NAME",
        help="a user it may be; may be repeated (default: anyone)",
    )
    parser.add_argument(
        "--extra", action="append", default=[], metavar="KEY", help="an extra field that your identity provider gives"
    )
    add_config(parser)
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    config = load(arguments)
    _check(config, config_path(arguments))
    text, unlisted = run_async(_manifest(config, arguments))
    sys.stdout.write(text)
    if unlisted and not arguments.legacy:
        names = ", ".join(f'"{name}"' for name in unlisted)
        print_note(f"the gateway may act on any resource here: {names} cannot tell what the policy allows")
    if arguments.legacy and not arguments.user:
        print_note("with these rules the gateway can be any user, also one who may do everything: --user names them")
    return OK


def _check(config: GatewayConfig, where: str) -> None:
    if not any(upstream.identity.value == "impersonation" for upstream in config.upstreams):
        raise ConfigurationError(
            "this gateway impersonates nobody",
            cause="no upstream has identity: impersonation",
            where=f"{where}, upstreams",
            code="config-invalid",
        )


async def _manifest(config: GatewayConfig, arguments: argparse.Namespace) -> tuple[str, tuple[str, ...]]:
    from ostiary.gateway import impersonation_role as roles
    from ostiary.gateway.policy.source import opened

    subject = _subject(arguments)
    async with opened(config.authorization) as policy:
        groups = await policy.authorizer.relevant_groups()
    identity = roles.Identity(groups, tuple(arguments.user), tuple(arguments.extra))
    if arguments.legacy:
        objects = roles.legacy(identity, name=arguments.name, subject=subject)
    else:
        grants = None if policy.unlisted else policy.grants
        objects = roles.constrained(identity, grants, name=arguments.name, subject=subject)
    return roles.manifest(objects), policy.unlisted


def _subject(arguments: argparse.Namespace) -> Subject:
    from ostiary.interfaces.authorization import Subject
    from ostiary.wire.rbac import is_dns_name

    if not is_dns_name(arguments.name):
        raise UsageError("--name cannot be the name of a role", hint="lower-case letters, digits and dashes")
    if arguments.subject_user:
        return Subject("User", arguments.subject_user)
    namespace, slash, name = arguments.service_account.partition("/")
    if not slash or not is_dns_name(namespace) or not is_dns_name(name):
        raise UsageError("--service-account is NAMESPACE/NAME", hint="as in: --service-account auth/gateway")
    return Subject("ServiceAccount", name, namespace)
