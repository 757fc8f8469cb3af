"""``ostiary policy suggest``: what was used, what was never used, and the smallest role, from audit logs."""

from __future__ import annotations

import argparse
import os
from typing import TYPE_CHECKING

from ostiary.cli.arguments import JSON, UsageError, add_output
from ostiary.cli.exit_codes import OK
from ostiary.cli.gateway.choice import DEFAULT, add_config, run_async
from ostiary.cli.output import print_json, print_note
from ostiary.cli.policy.log_reading import add_logs, add_since, counting, print_skipped, since_time
from ostiary.cli.policy.suggestion_output import SuggestionReport, print_reports
from ostiary.core.extras import needing
from ostiary.core.text import printable
from ostiary.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import AbstractAsyncContextManager

    from ostiary.gateway.audit.log_files import Counts
    from ostiary.gateway.config.settings import GatewayConfig
    from ostiary.gateway.policy.source import OpenedPolicy
    from ostiary.gateway.policy.usage import SubjectUse, UsageSelection
    from ostiary.interfaces.attributes import RequiresMore
    from ostiary.interfaces.authorization import Grant

YAML = "yaml"
KUBERNETES = "kubernetes"
# Of those who used nothing, so many are told, with the reason.
_IDLE_SHOWN = 5
DESCRIPTION = """\
Read what users really did from audit logs, of the gateway or of kube-apiserver, and print for each user, group or
service account: which rights they used, which rights of the policy they never used, and the smallest roles and bindings
that allow exactly what they used.

Requests that were refused are left out, by the policy or by the cluster, and so are those that somebody else made in
the user's name; how many is said. Discovery and reviews of oneself are left to the default roles of a cluster.

What the policy gives is read from the gateway's configuration (--config, or gateway.yaml in this directory), or from
the manifests at --policy.
"""
EPILOG = """\
examples:
  ostiary policy suggest --user alice --since 90d /var/log/ostiary/audit.log*
  ostiary policy suggest --serviceaccount shop:builder --names audit.log -o yaml | kubectl apply -f -
  zcat audit.log.*.gz | ostiary policy suggest --group developers --policy policy/ -
  ostiary policy suggest --impersonated-by system:serviceaccount:ostiary:ostiary kube-apiserver-audit.log
"""


def configure(parser: argparse.ArgumentParser) -> None:
    for option, what in (("--user", "the requests of this user"), ("--group", "those of all members of this group")):
        parser.add_argument(
            option, action="append", default=[], metavar="NAME", help=f"{what}; may be repeated (default: everybody's)"
        )
    parser.add_argument(
        "--serviceaccount",
        action="append",
        default=[],
        metavar="NAMESPACE:NAME",
        help="those of this service account; may be repeated",
    )
    parser.add_argument(
        "-n", "--namespace", action="append", default=[], metavar="NAME", help="only in this namespace; may be repeated"
    )
    add_since(parser)
    parser.add_argument("--upstream", metavar="NAME", help="only at this upstream (needed if the logs have several)")
    parser.add_argument("--names", action="store_true", help="allow only the objects that were used, by their names")
    parser.add_argument("--include-denied", action="store_true", help="suggest what was refused, too")
    parser.add_argument(
        "--impersonated-by",
        action="append",
        default=[],
        metavar="NAME",
        help="what this user did in another's name, the other did: the gateway in front of a cluster; may be repeated",
    )
    parser.add_argument(
        "--policy", metavar="PATH", help="the present policy: manifests, in place of the gateway's configuration"
    )
    parser.add_argument(
        "--name", default="used-by", metavar="NAME", help="how the names of the objects begin (default: %(default)s)"
    )
    add_config(parser)
    add_output(parser, YAML)
    add_logs(parser)
    parser.set_defaults(run=suggest)


def suggest(arguments: argparse.Namespace) -> int:
    from ostiary.wire.rbac import is_dns_name

    if not is_dns_name(arguments.name):
        raise UsageError("--name is not a valid name for a role", hint="use lower-case letters, digits and dashes")
    config = _config(arguments)
    with counting() as counts:
        usage = _usage(arguments, config, counts)
    if not usage:
        # An empty role would look like an answer.
        raise ConfigurationError(
            "the logs have no requests to suggest a role from",
            cause=f"{counts.lines:,} lines, {counts.unreadable:,} of them no audit events, and none was chosen",
            where=", ".join(arguments.logs),
            code="config-invalid",
        )
    # Whoever is impersonated in vain is in the log, too, under any name. Those without a request come last.
    is_chosen = arguments.user or arguments.group or arguments.serviceaccount
    shown = len(usage) if is_chosen else sum(use.requests > 0 for use in usage) + _IDLE_SHOWN
    usage, hidden = usage[:shown], len(usage) - shown
    grants, unlisted = _grants(arguments, config)
    reports = [SuggestionReport(use, grants, arguments.name, arguments.namespace) for use in usage]
    if arguments.output == JSON:
        print_json({"subjects": [report.as_json() for report in reports], "unreadable": counts.unreadable})
    else:
        print_reports(reports, only_manifest=arguments.output == YAML, compared=grants is not None)
    for report in reports:
        report.print_notes()
    if hidden > 0:
        what = "1 more is" if hidden == 1 else f"{hidden:,} more are"
        print_note(f"{what} not shown: none of their requests counts (--user tells why)")
    for name in unlisted:
        print_note(f'what the provider "{name}" gives cannot be listed, so it is not among what was never used')
    print_skipped(counts)
    return OK


# --- what was used ---


def _config(arguments: argparse.Namespace) -> GatewayConfig | None:
    if arguments.config is not None and arguments.policy is not None:
        raise UsageError("--config and --policy cannot be combined", hint="leave one of them out")
    if arguments.config is None and (arguments.policy is not None or not os.path.exists(DEFAULT)):
        return None
    from ostiary.gateway.config import load

    return load(arguments.config or DEFAULT)


def _usage(arguments: argparse.Namespace, config: GatewayConfig | None, counts: Counts) -> list[SubjectUse]:
    with needing("gateway"):
        from ostiary.gateway.policy.usage import UsageCollector
    from ostiary.gateway.audit.recorded import read
    from ostiary.gateway.policy.replay import stripped_prefixes

    upstreams = [] if config is None else [upstream.name for upstream in config.upstreams]
    prefixes = {} if config is None else stripped_prefixes(config)
    collector = UsageCollector(_selection(arguments), _requiring(config))
    usage = collector.collect(read(arguments.logs, counts, upstreams=upstreams, prefixes=prefixes))
    if len(collector.upstreams) > 1:
        names = sorted(filter(None, collector.upstreams))
        others = f" (or {', '.join(names[1:])})" if names[1:] else ""
        raise UsageError(
            "the logs have requests to several upstreams, and a right at one is none at another",
            hint=f"choose one, as in: --upstream {printable(names[0])}{printable(others)}",
        )
    return usage


def _selection(arguments: argparse.Namespace) -> UsageSelection:
    from ostiary.gateway.policy.usage import UsageSelection

    return UsageSelection(
        users=frozenset(arguments.user),
        groups=frozenset(arguments.group),
        accounts=frozenset(map(_account, arguments.serviceaccount)),
        namespaces=frozenset(arguments.namespace),
        since=since_time(arguments.since),
        upstream=arguments.upstream or "",
        proxies=frozenset(arguments.impersonated_by),
        include_denied=arguments.include_denied,
        names=arguments.names,
    )


def _account(text: str) -> tuple[str, str]:
    from ostiary.wire.rbac import is_dns_name

    namespace, colon, name = text.partition(":")
    if not colon or not is_dns_name(namespace) or not is_dns_name(name):
        raise UsageError("--serviceaccount must be NAMESPACE:NAME", hint="as in: --serviceaccount shop:builder")
    return namespace, name


def _requiring(config: GatewayConfig | None) -> Sequence[RequiresMore]:
    """The mappers that know for which requests one permission is not enough; without a configuration Kubernetes'."""
    from ostiary.core import catalog
    from ostiary.core.abilities import ability
    from ostiary.gateway.policy.replay import requiring_more
    from ostiary.interfaces.attributes import RequiresMore

    if config is not None:
        return requiring_more(config)
    mapper = ability(catalog.load("attributes", KUBERNETES)(), RequiresMore)
    return () if mapper is None else (mapper,)


# --- what the policy gives ---


def _grants(
    arguments: argparse.Namespace, config: GatewayConfig | None
) -> tuple[tuple[Grant, ...] | None, tuple[str, ...]]:
    """What the present policy gives; None if there is none to compare with."""
    from ostiary.gateway.policy.source import open_policy, open_policy_at

    upstream = arguments.upstream or ""
    if arguments.policy is not None:
        opening = open_policy_at(arguments.policy, upstream=upstream)
    elif config is not None:
        opening = open_policy(config.authorization, config.upstreams, upstream=upstream)
    else:
        print_note("no policy was given (--config or --policy), so it is not known what was never used")
        return None, ()
    return run_async(_list_grants(opening))


async def _list_grants(
    opening: AbstractAsyncContextManager[OpenedPolicy],
) -> tuple[tuple[Grant, ...], tuple[str, ...]]:
    async with opening as policy:
        return policy.grants, policy.unlisted
