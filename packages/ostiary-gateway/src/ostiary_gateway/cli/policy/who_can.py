"""``ostiary-gateway who-can``: the subjects that the policy of a gateway allows to do something."""

from __future__ import annotations

import argparse
from dataclasses import replace
from typing import TYPE_CHECKING, TypedDict, cast

from ostiary.cli.arguments import JSON, add_output
from ostiary.cli.exit_codes import FAILED, OK
from ostiary.cli.output import print_json, print_note, print_table
from ostiary.model import Attributes, RequestInfo, UserInfo
from ostiary_gateway.cli.options import add_config, load, run_async
from ostiary_gateway.cli.policy.question import add_question, chosen_upstream, misspelling_notes, question

if TYPE_CHECKING:
    from ostiary_gateway.config.gateway_config import GatewayConfig

DESCRIPTION = """\
List everyone whom the policy of a gateway allows to do something: users, groups and service accounts, each with the
rule that allows it. An earlier provider may still deny it to some of them; check with ostiary-gateway can-i.

Exit code 1 if nobody is allowed.
"""
EPILOG = """\
examples:
  ostiary-gateway who-can delete secrets --namespace team
  ostiary-gateway who-can list nodes --output json
  ostiary-gateway who-can get --path /metrics
"""


class WhoCanJson(TypedDict):
    """The format of `ostiary_gateway.api.operator_json`."""

    subjects: list[dict[str, str]]
    unknown: list[str]


def configure(parser: argparse.ArgumentParser) -> None:
    parser.description, parser.epilog = DESCRIPTION, EPILOG
    add_question(parser)
    add_config(parser)
    add_output(parser)
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    request_without_upstream, config = question(arguments), load(arguments)
    request = replace(request_without_upstream, upstream=chosen_upstream(arguments.upstream, config))
    answer = run_async(_ask(config, request))
    if arguments.output == JSON:
        print_json(answer)
    elif answer["subjects"]:
        columns = ("kind", "name", "namespace", "via")
        print_table(
            [name.upper() for name in columns], [[subject[key] for key in columns] for subject in answer["subjects"]]
        )
    else:
        print("nobody")
    for name in answer["unknown"]:
        print_note(f'the provider "{name}" cannot list whom it allows')
    # A wildcard rule also matches misspelt resources, so print the spelling notes even if subjects were found.
    for note in misspelling_notes(request, config, allowed=False):
        print_note(note)
    return OK if answer["subjects"] else FAILED


async def _ask(config: GatewayConfig, request: RequestInfo) -> WhoCanJson:
    from ostiary_gateway.api.operator_json import who_can_json
    from ostiary_gateway.policy.source import open_policy

    async with open_policy(config.authorization, config.upstreams) as policy:
        return cast(WhoCanJson, who_can_json(policy.authorizer.who_can(Attributes(UserInfo(""), request))))
