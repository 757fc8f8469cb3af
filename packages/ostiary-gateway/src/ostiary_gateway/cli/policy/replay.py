"""``ostiary-gateway policy replay``: what a new policy would have decided about recorded requests."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, cast

from ostiary.cli.arguments import JSON, add_output
from ostiary.cli.exit_codes import FAILED, OK
from ostiary.cli.output import Style, paint, print_json, print_note
from ostiary.core.text import printable
from ostiary.errors import ConfigurationError
from ostiary_gateway.cli.options import run_async
from ostiary_gateway.cli.policy.decision_output import AttributesJson, object_text
from ostiary_gateway.cli.policy.log_reading import add_logs, counting, print_skipped

if TYPE_CHECKING:
    from ostiary_gateway.audit.log_files import Counts
    from ostiary_gateway.config.gateway_config import GatewayConfig
    from ostiary_gateway.policy.replay import Difference, Replay

GAIN, LOSS, ANY, NEVER = FAIL_ON = ("gain", "loss", "any", "never")

DESCRIPTION = """\
Decide recorded requests again, with the policy of a candidate gateway.yaml, and print the decisions that differ:
who would gain or lose access that they used. AUDIT_LOG is the audit log of the gateway, or of kube-apiserver: one event
on a line, in files that may be compressed with gzip, or - for standard input.

Exit code 1 if decisions differ, or if a request could not be decided; --fail-on chooses what counts.
"""
EPILOG = """\
examples:
  ostiary-gateway policy replay --config new-gateway.yaml /var/log/ostiary/audit.log
  ostiary-gateway policy replay --config new-gateway.yaml --fail-on loss audit.log audit.log.1
"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-c", "--config", metavar="FILE", required=True, help="the candidate's configuration")
    add_fail_on(parser, ANY)
    add_output(parser)
    add_logs(parser)
    parser.set_defaults(run=replay_logs)


def add_fail_on(parser: argparse.ArgumentParser, default: str) -> None:
    parser.add_argument(
        "--fail-on", choices=FAIL_ON, default=default, help="what makes the exit code 1 (default: %(default)s)"
    )


def exit_code(fail_on: str, *, gains: int, losses: int) -> int:
    counted = {GAIN: gains, LOSS: losses, ANY: gains + losses, NEVER: 0}
    return FAILED if counted[fail_on] else OK


def replay_logs(arguments: argparse.Namespace) -> int:
    from ostiary_gateway import config

    with counting() as counts:
        replay = run_async(_replay(config.load(arguments.config), arguments.logs, counts))
    if not replay.asked:
        # A CI gate that replayed nothing must fail.
        raise ConfigurationError(
            "there are no requests to replay",
            cause=f"no event records a decision; {counts.unreadable} lines are not audit events",
            where=", ".join(arguments.logs),
            code="config-invalid",
        )
    gains = sum(difference.effect.value == GAIN for difference in replay.differences)
    losses = len(replay.differences) - gains
    if arguments.output == JSON:
        print_json(_replay_json(replay) | {"unreadable": counts.unreadable, "undecided": counts.undecided})
    else:
        _print_replay(replay, gains=gains, losses=losses)
    print_skipped(counts)
    if replay.failed:
        print_note(f"{replay.failed} requests could not be decided: {replay.error}")
        return FAILED
    return exit_code(arguments.fail_on, gains=gains, losses=losses)


async def _replay(config: GatewayConfig, logs: list[str], counts: Counts) -> Replay:
    from ostiary_gateway.audit.recorded import read
    from ostiary_gateway.policy.replay import replay, requiring_more, stripped_prefixes
    from ostiary_gateway.policy.source import open_policy

    upstreams = [upstream.name for upstream in config.upstreams]
    async with open_policy(config.authorization, config.upstreams) as policy:
        records = read(logs, counts, upstreams=upstreams, prefixes=stripped_prefixes(config))
        return await replay(records, policy.authorizer, requiring_more(config))


def _print_replay(replay: Replay, *, gains: int, losses: int) -> None:
    for difference in replay.differences:
        gained = difference.effect.value == GAIN
        sign = paint("+", Style.BAD, sys.stdout) if gained else paint("-", Style.GOOD, sys.stdout)
        times = "once" if difference.count == 1 else f"{difference.count} times"
        print(f"{sign} {printable(_difference_text(difference))}: {times}, such as {printable(difference.example)}")
    requests = f"{replay.asked} {'request' if replay.asked == 1 else 'requests'}"
    print(f"{requests}: gains: {gains}, losses: {losses}" if replay.differences else f"{requests}: decided as before")


def _difference_text(difference: Difference) -> str:
    attributes = _difference_attributes(difference)
    word = "may now" if difference.effect.value == GAIN else "may no longer"
    return (
        f'User "{difference.username}" {word} {attributes["verb"]} {attributes.get("path") or object_text(attributes)}'
    )


def _difference_attributes(difference: Difference) -> AttributesJson:
    from ostiary.model import Attributes, UserInfo
    from ostiary_gateway.api.operator_json import attributes_json

    return cast(AttributesJson, attributes_json(Attributes(UserInfo(difference.username), difference.request)))


def _replay_json(replay: Replay) -> dict[str, object]:
    differences = []
    for difference in replay.differences:
        fields = {key: value for key, value in _difference_attributes(difference).items() if key != "groups"}
        summary = {
            "effect": difference.effect.value,
            "count": difference.count,
            "example": difference.example,
            "reason": difference.reason,
        }
        differences.append(fields | summary)
    return {"asked": replay.asked, "free": replay.free, "failed": replay.failed, "differences": differences}
