"""``ostiary-gateway policy suggest``: rights that were used or never used, and the smallest role, from audit logs."""

from __future__ import annotations

import argparse
import os
import sys
from typing import TYPE_CHECKING

from ostiary.cli.arguments import JSON, UsageError, add_output
from ostiary.cli.exit_codes import OK
from ostiary.cli.output import Style, one_line, paint, print_json, print_note, print_table
from ostiary.core.text import printable
from ostiary.errors import ConfigurationError
from ostiary_gateway.cli.options import DEFAULT, add_config, run_async
from ostiary_gateway.cli.policy.log_reading import add_logs, add_since, counting, print_skipped, since_time

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from contextlib import AbstractAsyncContextManager

    from ostiary.core.policy_rules import PolicyRule
    from ostiary_gateway.audit.log_files import Counts
    from ostiary_gateway.config.gateway_config import GatewayConfig
    from ostiary_gateway.interfaces.attributes import RequiresMore
    from ostiary_gateway.interfaces.authorization import Grant, Subject
    from ostiary_gateway.policy.source import OpenedPolicy
    from ostiary_gateway.policy.suggested_role import UnusedRight
    from ostiary_gateway.policy.usage import Right, SubjectUse, UsageSelection, Use

# Report for one subject.

_REMARKS = {
    "system:masters": "a member of system:masters may do everything, without any role",
    "system:nodes": "the Node authorizer allows a node what its own pods need; a role would allow it on all objects",
    "system:unauthenticated": "a role for this user is one for everybody without a credential",
}


class SuggestionReport:
    """The used and unused rights of one subject, and the suggested roles."""

    def __init__(
        self, use: SubjectUse, grants: Iterable[Grant] | None, prefix: str, namespaces: Iterable[str] = ()
    ) -> None:
        from ostiary_gateway.policy.impersonation_role import manifest
        from ostiary_gateway.policy.suggested_role import suggested_objects, unused_rights

        self.use = use
        self.unused = () if grants is None else unused_rights(use, grants, frozenset(namespaces))
        self.manifest = manifest(suggested_objects(use.subject, use.uses, prefix=prefix))

    @property
    def who(self) -> str:
        return _who(self.use.subject)

    def print_notes(self) -> None:
        """Print what was left out, and why."""
        use = self.use
        for count, why in (
            (use.denied, "refused"),
            (use.by_others, f"made in its name by {_some(use.others)} (see --impersonated-by)"),
            (use.inexpressible, "no rule allows this without allowing more"),
        ):
            if count:
                print_note(f"{self.who}: {count:,} {'request' if count == 1 else 'requests'} left out: {why}")
        for group, remark in _REMARKS.items():
            if group in use.groups:
                print_note(f"{self.who}: {remark}")
        if any(not right.namespace and right.resource for right in use.uses):
            print_note(f"{self.who}: what was used without a namespace is allowed in every namespace, as RBAC has it")

    def as_json(self) -> dict[str, object]:
        use = self.use
        return {
            "subject": _subject_json(use.subject),
            "requests": use.requests,
            "denied": use.denied,
            "byOthers": use.by_others,
            "others": sorted(use.others),
            "discovery": use.discovery,
            "inexpressible": use.inexpressible,
            "used": [_use_json(right, each) for right, each in _in_order(use)],
            "unused": [_unused_json(each) for each in self.unused],
            "manifest": self.manifest,
        }


# --- printing ---


def print_reports(reports: list[SuggestionReport], *, only_manifest: bool, compared: bool) -> None:
    if only_manifest:
        sys.stdout.write("---\n".join(report.manifest for report in reports if report.manifest))
        return
    for report in reports:
        use = report.use
        print(f"{report.who}: {use.requests:,} requests used {len(use.uses):,} rights\n")
        if use.uses:
            print_table(("NAMESPACE", "RESOURCE", "USED", "LAST"), _used_rows(use))
            print()
        if compared:
            _print_unused(report.unused)
        if report.manifest:
            print(paint("# the smallest roles that allow it", Style.FAINT, sys.stdout))
            print(report.manifest)


def _used_rows(use: SubjectUse) -> list[tuple[str, str, str, str]]:
    """Return a row for each resource in a namespace, with the number of uses of each verb."""
    together: dict[tuple[str, str], list[tuple[Right, Use]]] = {}
    for right, each in _in_order(use):
        together.setdefault((right.namespace, _what(right)), []).append((right, each))
    return [
        (
            namespace,
            what,
            ", ".join(f"{right.verb} {each.count:,}" for right, each in used),
            max(each.last for _, each in used).isoformat(timespec="seconds").replace("+00:00", "Z"),
        )
        for (namespace, what), used in together.items()
    ]


def _print_unused(unused: tuple[UnusedRight, ...]) -> None:
    if not unused:
        print("never used: nothing; all that the policy gives was used\n")
        return
    print_table(("NEVER USED", "NAMESPACE", "FROM"), [row for each in unused for row in _unused_rows(each)])
    print()


def _unused_rows(unused: UnusedRight) -> Iterable[tuple[str, str, str]]:
    via = unused.subject.via or _who(unused.subject)
    if unused.subject.kind == "Group":
        via += f" (group {unused.subject.name})"
    for rule in unused.rules:
        yield f"{', '.join(rule.verbs)} on {_rule_text(rule)}", unused.namespace, via
    if unused.wider:
        whole = f"{', '.join(unused.whole.verbs)} on {_rule_text(unused.whole)}"
        yield f"{whole}: more than was used", unused.namespace, via


def _rule_text(rule: PolicyRule) -> str:
    if rule.non_resource_urls:
        return ", ".join(rule.non_resource_urls)
    groups = ", ".join(filter(None, rule.api_groups))
    named = f" named {', '.join(rule.resource_names)}" if rule.resource_names else ""
    return f"{', '.join(rule.resources)}{f' of {groups}' if groups else ''}{named}"


def _what(right: Right) -> str:
    if right.path:
        return right.path
    kind, slash, subresource = right.resource.partition("/")
    text = f"{kind}.{right.api_group}{slash}{subresource}" if right.api_group else right.resource
    return f"{text} {right.name}" if right.name else text


def _in_order(use: SubjectUse) -> list[tuple[Right, Use]]:
    return sorted(use.uses.items(), key=lambda item: (item[0].namespace, item[0].path, _what(item[0]), item[0].verb))


def _who(subject: Subject) -> str:
    where = f' in namespace "{subject.namespace}"' if subject.namespace else ""
    return one_line(f'{subject.kind} "{subject.name}"{where}')


def _some(names: set[str]) -> str:
    listed = ", ".join(f'"{one_line(name)}"' for name in sorted(names)[:2])
    return f"{listed} and {len(names) - 2} others" if len(names) > 2 else listed


def _subject_json(subject: Subject) -> dict[str, str]:
    return {"kind": subject.kind, "name": subject.name, "namespace": subject.namespace}


def _use_json(right: Right, use: Use) -> dict[str, object]:
    fields: dict[str, object] = {"verb": right.verb}
    if right.path:
        fields["path"] = right.path
    else:
        fields |= {
            "group": right.api_group,
            "resource": right.resource,
            "namespace": right.namespace,
            "name": right.name,
        }
    return fields | {"count": use.count, "first": use.first.isoformat(), "last": use.last.isoformat()}


def _unused_json(unused: UnusedRight) -> dict[str, object]:
    rules = [
        {"verbs": list(rule.verbs), "paths": list(rule.non_resource_urls)}
        if rule.non_resource_urls
        else {
            "verbs": list(rule.verbs),
            "groups": list(rule.api_groups),
            "resources": list(rule.resources),
            "names": list(rule.resource_names),
        }
        for rule in unused.rules
    ]
    return {
        "subject": _subject_json(unused.subject),
        "via": unused.subject.via,
        "namespace": unused.namespace,
        "never": unused.never,
        "wider": unused.wider,
        "rules": rules,
    }


YAML = "yaml"
KUBERNETES = "kubernetes"
# Maximum number of listed subjects without counted requests.
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
  ostiary-gateway policy suggest --user alice --since 90d /var/log/ostiary/audit.log*
  ostiary-gateway policy suggest --serviceaccount shop:builder --names audit.log -o yaml | kubectl apply -f -
  zcat audit.log.*.gz | ostiary-gateway policy suggest --group developers --policy policy/ -
  ostiary-gateway policy suggest --impersonated-by system:serviceaccount:ostiary:ostiary kube-apiserver-audit.log
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
    from ostiary_gateway.wire.rbac import is_dns_name

    if not is_dns_name(arguments.name):
        raise UsageError("--name is not a valid name for a role", hint="use lower-case letters, digits and dashes")
    config = _config(arguments)
    with counting() as counts:
        usage = _usage(arguments, config, counts)
    if not usage:
        # An empty role would look like a result.
        raise ConfigurationError(
            "the logs have no requests to suggest a role from",
            cause=f"{counts.lines:,} lines, {counts.unreadable:,} of them no audit events, and none was chosen",
            where=", ".join(arguments.logs),
            code="config-invalid",
        )
    # Failed impersonations are in the log too, under arbitrary names. Subjects without counted requests come last.
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
    from ostiary_gateway.config import load

    return load(arguments.config or DEFAULT)


def _usage(arguments: argparse.Namespace, config: GatewayConfig | None, counts: Counts) -> list[SubjectUse]:
    from ostiary_gateway.audit.recorded import read
    from ostiary_gateway.policy.replay import stripped_prefixes
    from ostiary_gateway.policy.usage import UsageCollector

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
    from ostiary_gateway.policy.usage import UsageSelection

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
    from ostiary_gateway.wire.rbac import is_dns_name

    namespace, colon, name = text.partition(":")
    if not colon or not is_dns_name(namespace) or not is_dns_name(name):
        raise UsageError("--serviceaccount must be NAMESPACE:NAME", hint="as in: --serviceaccount shop:builder")
    return namespace, name


def _requiring(config: GatewayConfig | None) -> Sequence[RequiresMore]:
    """Return the mappers that know which requests need several permissions.

    Without a configuration it is the Kubernetes mapper.
    """
    from ostiary_gateway import catalog
    from ostiary_gateway.capabilities import ability
    from ostiary_gateway.interfaces.attributes import RequiresMore
    from ostiary_gateway.policy.replay import requiring_more

    if config is not None:
        return requiring_more(config)
    mapper = ability(catalog.load("attributes", KUBERNETES)(), RequiresMore)
    return () if mapper is None else (mapper,)


# --- granted rights ---


def _grants(
    arguments: argparse.Namespace, config: GatewayConfig | None
) -> tuple[tuple[Grant, ...] | None, tuple[str, ...]]:
    """Return the grants of the current policy; None if there is none to compare with."""
    from ostiary_gateway.policy.source import open_policy, open_policy_at

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
