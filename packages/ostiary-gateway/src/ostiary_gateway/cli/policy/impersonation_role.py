"""``ostiary-gateway impersonation-role``: the manifests of the rights that the gateway itself needs in a cluster."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from ostiary.cli.arguments import UsageError
from ostiary.cli.exit_codes import OK
from ostiary.cli.output import print_note
from ostiary.errors import ConfigurationError, ProviderError
from ostiary_gateway.cli.options import add_config, config_path, load, run_async
from ostiary_gateway.cli.policy.question import chosen_upstream

if TYPE_CHECKING:
    from ostiary.core.policy_rules import PolicyRule
    from ostiary_gateway.authorization.who_can import PossibleSubjects
    from ostiary_gateway.config.gateway_config import GatewayConfig
    from ostiary_gateway.interfaces.authorization import Subject
    from ostiary_gateway.policy.impersonation_role import ImpersonationTargets
    from ostiary_gateway.wire.rbac import Binding, Role

DESCRIPTION = """\
Print the role and binding that a gateway with identity: impersonation needs in the cluster behind it, made from its
policy: only users and groups that the configured providers can produce, and only the verbs and resources that the
policy allows one of them. It can never be system:masters, nor a part of the control plane, a node or a service account.
Print it again when the policy or the users have changed; a note is printed for each rule without a bound. Where
decisions are compared with the cluster's (shadow), the gateway may also create subjectaccessreviews.

Where the policy is the cluster's own (type: rbac, from: {upstream: NAME}), the role also allows to list and watch it,
and the command reads it from there. Until that is allowed, only that part is printed: apply it, and run it again.

Users are named one by one. Those of htpasswd and single_user are known; where an identity provider cannot list its
users, name them with --user, or accept every name with --any-user.

That needs constrained impersonation, which Kubernetes has by default since 1.36. For older clusters --legacy prints
the classic rules, which limit whom the gateway can be, and not what it does then.
"""
EPILOG = """\
examples:
  ostiary-gateway impersonation-role --config gateway.yaml | kubectl apply -f -
  ostiary-gateway impersonation-role --service-account auth/gateway --legacy
  ostiary-gateway impersonation-role --subject-user gateway.example.com --user alice --user bob
  ostiary-gateway impersonation-role --as-service-account shop/builder
"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.description, parser.epilog = DESCRIPTION, EPILOG
    parser.add_argument("--legacy", action="store_true", help="for clusters without constrained impersonation")
    parser.add_argument(
        "--name", default="ostiary-gateway", metavar="NAME", help="the name of the objects (default: %(default)s)"
    )
    parser.add_argument(
        "--service-account",
        default="ostiary/ostiary",
        metavar="NAMESPACE/NAME",
        help="the service account of the gateway in the cluster (default: %(default)s)",
    )
    parser.add_argument(
        "--subject-user", metavar="NAME", help="the user name of the gateway, if it uses a client certificate"
    )
    parser.add_argument(
        "--user",
        action="append",
        default=[],
        metavar="NAME",
        help="a user it may impersonate, and no others; may be repeated (default: all known users)",
    )
    parser.add_argument(
        "--any-user",
        action="store_true",
        help="it may impersonate any user, even one of the control plane (not recommended)",
    )
    parser.add_argument(
        "--extra", action="append", default=[], metavar="KEY", help="an extra field that your identity provider sets"
    )
    parser.add_argument(
        "--as-service-account",
        action="append",
        default=[],
        metavar="NAMESPACE/NAME",
        help="a service account it may impersonate, for kubectl --as or because its pods sign in (NAMESPACE/*: a whole"
        " namespace); may be repeated",
    )
    parser.add_argument(
        "--as-node",
        action="append",
        default=[],
        metavar="NAME",
        help="for kubectl --as: a node it may impersonate; may be repeated",
    )
    parser.add_argument(
        "--upstream", metavar="NAME", help="the upstream to print it for (needed if several have their own policies)"
    )
    add_config(parser)
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    from ostiary_gateway.policy import impersonation_role as roles

    config = load(arguments)
    _check(config, config_path(arguments))
    objects, unlisted = run_async(_objects(config, arguments))
    sys.stdout.write(roles.manifest(objects))
    if unlisted and not arguments.legacy:
        names = ", ".join(f'"{name}"' for name in unlisted)
        print_note(f"the gateway may act on any resource here: {names} cannot tell what the policy allows")
    for sentence in roles.unbounded_rules(objects):
        print_note(sentence)
    return OK


def _check(config: GatewayConfig, where: str) -> None:
    if not any(upstream.identity.value == "impersonation" for upstream in config.upstreams):
        raise ConfigurationError(
            "this gateway does not use impersonation",
            cause="no upstream has identity: impersonation",
            where=f"{where}, upstreams",
            code="config-invalid",
        )


async def _objects(
    config: GatewayConfig, arguments: argparse.Namespace
) -> tuple[tuple[Role | Binding, ...], tuple[str, ...]]:
    from ostiary_gateway.authorization.who_can import PossibleSubjects
    from ostiary_gateway.policy import impersonation_role as roles
    from ostiary_gateway.policy.source import open_policy

    subject, chosen = _subject(arguments), chosen_upstream(arguments.upstream, config)
    followed = _followed_rules(config, chosen)
    is_shadowed = any(each.shadow is not None and chosen in ("", each.name) for each in config.upstreams)
    own = (*followed, *((roles.ASKS_DECISIONS,) if is_shadowed else ()))
    try:
        async with open_policy(config.authorization, config.upstreams, upstream=chosen) as policy:
            mentioned = await policy.authorizer.relevant_groups()
            usernames = {grant.subject.name for grant in policy.grants if grant.subject.kind == "User"}
    except ProviderError as error:
        if not followed:
            raise
        # The policy can be read only after this is allowed, and the other rights depend on the policy.
        print_note(f"the policy of the cluster cannot be read yet: {error.cause or error.summary}")
        print_note("apply this, and run the command again: it then prints all that the gateway needs")
        return roles.reading_role(own, name=arguments.name, subject=subject), ()
    possible = PossibleSubjects.from_config(config)
    identity = _identity(possible, mentioned, usernames, arguments)
    if arguments.legacy:
        return roles.legacy_role(identity, name=arguments.name, subject=subject, own=own), policy.unlisted
    grants = None if policy.unlisted else policy.grants
    role = roles.constrained_role(identity, grants, name=arguments.name, subject=subject, own=own)
    return role, policy.unlisted


def _followed_rules(config: GatewayConfig, upstream: str) -> tuple[PolicyRule, ...]:
    """Return the rules needed to follow the policy of the cluster, if the policy comes from there."""
    from ostiary.core.policy_rules import PolicyRule
    from ostiary_gateway.proxy.following import needed_access

    # Without a choice there is one upstream, or the policy is the same for all of them.
    names = [upstream] if upstream else [each.name for each in config.upstreams]
    needed = dict.fromkeys(access for name in names for access in needed_access(config.authorization.chain, name))
    return tuple(PolicyRule(access.verbs, (access.api_group,), access.resources) for access in needed)


def _identity(
    possible: PossibleSubjects, mentioned: frozenset[str], named: set[str], arguments: argparse.Namespace
) -> ImpersonationTargets:
    """Return the users and groups to impersonate: those who can sign in, as far as known, and those of the options."""
    from ostiary_gateway.policy.impersonation_role import ImpersonationTargets

    return ImpersonationTargets(
        groups=frozenset(filter(possible.can_be_group, mentioned)),
        users=_named_users(arguments) or _known_users(possible, named, any_user=arguments.any_user),
        extra=(*possible.extra, *arguments.extra),
        uids=possible.uid,
        any_user=arguments.any_user,
        service_accounts=tuple(_account(text) for text in arguments.as_service_account),
        nodes=tuple(_node(text) for text in arguments.as_node),
        accounts_sign_in=possible.service_accounts,
    )


def _known_users(possible: PossibleSubjects, named: set[str], *, any_user: bool) -> tuple[str, ...]:
    """Return the users that the providers list. For a provider without a list, return those that the policy names."""
    listed = possible.usernames()
    others = {name for name in named if possible.can_be_user(name)} - listed
    if possible.unlisted and not any_user:
        providers = ", ".join(f'"{name}"' for name in possible.unlisted)
        hint = "name its users with --user, or accept every name with --any-user"
        if not listed and not others:
            raise ConfigurationError(
                "there are no known users for the gateway to impersonate",
                cause=f"{providers} cannot list its users, and the policy names none of them",
                hint=hint,
                code="config-invalid",
            )
        only = ", ".join(f'"{name}"' for name in sorted(others)) or "none"
        print_note(f"{providers} cannot list its users: of them only those are in it that the policy names: {only}")
        print_note(hint)
    return tuple(sorted({*listed, *others}))


def _named_users(arguments: argparse.Namespace) -> tuple[str, ...]:
    for name in arguments.user:
        if not name or name.startswith("system:"):
            raise UsageError(
                "--user must be a user who can sign in, not a system user",
                hint="service accounts and nodes: --as-service-account NAMESPACE/NAME, --as-node NAME",
            )
    return tuple(arguments.user)


def _account(text: str) -> tuple[str, str]:
    from ostiary.core.policy_rules import ANY
    from ostiary_gateway.wire.rbac import is_dns_name

    namespace, slash, name = text.partition("/")
    if not slash or not is_dns_name(namespace) or (name != ANY and not is_dns_name(name)):
        hint = "as in: --as-service-account shop/builder, or shop/* for all of the namespace"
        raise UsageError("--as-service-account must be NAMESPACE/NAME", hint=hint)
    return namespace, name


def _node(text: str) -> str:
    from ostiary_gateway.wire.rbac import is_dns_name

    if not is_dns_name(text):
        raise UsageError("--as-node must be the name of a node", hint="as in: --as-node worker-1")
    return str(text)


def _subject(arguments: argparse.Namespace) -> Subject:
    from ostiary_gateway.interfaces.authorization import Subject
    from ostiary_gateway.wire.rbac import is_dns_name

    if not is_dns_name(arguments.name):
        raise UsageError("--name is not a valid name for a role", hint="use lower-case letters, digits and dashes")
    if arguments.subject_user:
        return Subject("User", arguments.subject_user)
    namespace, slash, name = arguments.service_account.partition("/")
    if not slash or not is_dns_name(namespace) or not is_dns_name(name):
        raise UsageError("--service-account must be NAMESPACE/NAME", hint="as in: --service-account auth/gateway")
    return Subject("ServiceAccount", name, namespace)
