"""``ostiary-gateway policy shadow``: where the gateway and a cluster decide differently, from audit logs."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from ostiary.cli.arguments import JSON, add_output
from ostiary.cli.exit_codes import FAILED, OK
from ostiary.cli.output import Style, one_line, paint, print_json, print_note, rows
from ostiary.errors import ConfigurationError
from ostiary_gateway.cli.options import run_async
from ostiary_gateway.cli.policy.log_reading import add_logs, add_since, counting, print_skipped, since_time

if TYPE_CHECKING:
    from ostiary_gateway.policy.disagreements import Comparisons, Disagreement

ANY, GATEWAY_ALLOWS, CLUSTER_ALLOWS, NEVER = FAIL_ON = ("any", "gateway-allows", "cluster-allows", "never")
DESCRIPTION = """\
Show where the gateway and the cluster behind it decide differently, from the audit logs of a gateway whose upstream has
shadow: for a share of the requests it asks the cluster what it would have decided, and records both. Equal
disagreements are shown once: the user, what was asked, how often, when first and last, and both reasons.

With --config it also says which rule of that policy decides now, or comes closest.

Exit code 1 if the two disagree; --fail-on chooses what counts. It is 1 as well if nothing was compared.
"""
EPILOG = """\
examples:
  ostiary-gateway policy shadow /var/log/ostiary/audit.log
  ostiary-gateway policy shadow --config gateway.yaml --since 24h audit.log audit.log.1.gz
  ostiary-gateway policy shadow --fail-on gateway-allows --output json audit.log
"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "-c", "--config", metavar="FILE", help="explain each disagreement with the policy of this configuration"
    )
    parser.add_argument("--upstream", metavar="NAME", help="only what was asked of this upstream")
    add_since(parser)
    parser.add_argument(
        "--fail-on",
        choices=FAIL_ON,
        default=ANY,
        help="what makes the exit code 1: any disagreement, or that only one of the two allows (default: %(default)s)",
    )
    add_output(parser)
    add_logs(parser)
    parser.set_defaults(run=show_disagreements)


def show_disagreements(arguments: argparse.Namespace) -> int:
    from ostiary_gateway.policy.disagreements import read_comparisons

    with counting() as counts:
        compared = read_comparisons(
            arguments.logs, counts, since=since_time(arguments.since), upstream=arguments.upstream or ""
        )
    if not compared.agreed and not compared.disagreements:
        # A CI gate that compared nothing must fail.
        raise ConfigurationError(
            "the logs have no decisions that were compared",
            cause=f"{compared.unknown:,} could not be asked about"
            if compared.unknown
            else "no event is of shadow mode",
            where=", ".join(arguments.logs),
            hint="set shadow at an upstream: see the how-to page compare-with-the-cluster",
            code="config-invalid",
        )
    rules = run_async(_explain(arguments.config, compared)) if arguments.config else {}
    if arguments.output == JSON:
        print_json(_as_json(compared, rules) | {"unreadable": counts.unreadable})
    else:
        _print(compared, rules)
    if compared.unknown:
        last = one_line(compared.unknown_reason)
        print_note(f"{compared.unknown:,} requests could not be asked about, the last because {last}")
    print_skipped(counts)
    return _exit_code(arguments.fail_on, compared)


def _exit_code(fail_on: str, compared: Comparisons) -> int:
    gateway = sum(each.gateway_allows for each in compared.disagreements)
    cluster = len(compared.disagreements) - gateway
    counted = {ANY: gateway + cluster, GATEWAY_ALLOWS: gateway, CLUSTER_ALLOWS: cluster, NEVER: 0}
    return FAILED if counted[fail_on] else OK


async def _explain(config: str, compared: Comparisons) -> dict[Disagreement, str]:
    """Return the rule that decides now, as far as the provider can determine it."""
    from ostiary_gateway import config as gateway_config
    from ostiary_gateway.audit.recorded import with_upstream
    from ostiary_gateway.policy.source import open_policy

    loaded = gateway_config.load(config)
    names = [upstream.name for upstream in loaded.upstreams]
    texts = {}
    async with open_policy(loaded.authorization, loaded.upstreams) as policy:
        for each in compared.disagreements:
            chain = await policy.authorizer.explain(with_upstream(each.example, names).attributes)
            explained = [step.explanation for step in chain.steps if step.explanation is not None]
            parts = [text for why in explained for text in (why.decision.reason, why.closest, why.failed) if text]
            texts[each] = "; ".join(dict.fromkeys(parts)) or chain.error or "no rule comes close"
    return texts


def _print(compared: Comparisons, rules: dict[Disagreement, str]) -> None:
    for each in compared.disagreements:
        who = "only the gateway allows" if each.gateway_allows else "only the cluster allows"
        print(f"{paint(who, Style.BAD if each.gateway_allows else Style.DOUBTFUL, sys.stdout)} {one_line(each.text)}")
        span = f"{_time(each.first)} to {_time(each.last)}" if each.count > 1 else _time(each.first)
        times = "once" if each.count == 1 else f"{each.count:,} times"
        parts = [("when", f"{times}, {span}, such as {each.example.id}")]
        parts += [("gateway", each.gateway_reason), ("cluster", each.cluster_reason), ("rule now", rules.get(each, ""))]
        for row in rows([(name, one_line(text)) for name, text in parts if text], stream=sys.stdout, width=8):
            print(row)
    total = compared.agreed + sum(each.count for each in compared.disagreements)
    disagreed = total - compared.agreed
    print(
        f"{total:,} decisions compared: {disagreed:,} differ"
        if disagreed
        else f"{total:,} decisions compared: all agree"
    )


def _as_json(compared: Comparisons, rules: dict[Disagreement, str]) -> dict[str, object]:
    disagreements = []
    for each in compared.disagreements:
        request = each.example.attributes.request
        fields: dict[str, object] = {
            "allows": "gateway" if each.gateway_allows else "cluster",
            "user": each.example.attributes.user.username,
            "upstream": request.upstream,
            "verb": request.verb,
        }
        if request.is_resource:
            where = {"group": request.api_group, "resource": request.resource, "subresource": request.subresource}
            fields |= where | {"namespace": request.namespace}
        else:
            fields["path"] = request.path
        disagreements.append(
            fields
            | {
                "count": each.count,
                "first": each.first.isoformat(),
                "last": each.last.isoformat(),
                "example": each.example.id,
                "gatewayReason": each.gateway_reason,
                "clusterReason": each.cluster_reason,
            }
            | ({"rule": rules[each]} if each in rules else {})
        )
    return {"agreed": compared.agreed, "unknown": compared.unknown, "disagreements": disagreements}


def _time(at: object) -> str:
    return str(at).partition(".")[0].replace("+00:00", "").replace(" ", "T") + "Z"
