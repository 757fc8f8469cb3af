"""``ostiary-gateway can-i``: check whether the policy of a gateway allows a user to do something, and why."""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, NotRequired, TypedDict, cast

from ostiary.cli.arguments import JSON, add_output
from ostiary.cli.exit_codes import FAILED, OK
from ostiary.cli.output import Style, paint, print_json, print_note
from ostiary.core.scopes import Delegation, narrow, parse_scope
from ostiary.errors import ProviderError
from ostiary.model import Attributes, Decision, UserInfo
from ostiary_gateway.authorization.implied_groups import AUTHENTICATED
from ostiary_gateway.cli.options import add_config, load, login_name, run_async
from ostiary_gateway.cli.policy.decision_output import (
    AttributesJson,
    DecisionJson,
    ExplanationJson,
    asked_text,
    print_rows,
    print_steps,
    verdict_text,
)
from ostiary_gateway.cli.policy.question import (
    add_question,
    chosen_upstream,
    misspelling_notes,
    question,
    speaks_kubernetes,
)

if TYPE_CHECKING:
    from ostiary_gateway.config.gateway_config import GatewayConfig

DESCRIPTION = """\
Ask the authorization chain of a gateway whether a user may do something. Nothing is sent to a running gateway:
the chain of the configuration is asked here, with the policy as it lies in its files now; that of a cluster (rbac with
from) is read from there.

Prints yes or no; the exit code is 0 for yes and 1 for no. With --explain it shows the rule that decided or came
closest, the one condition of it that failed, and the smallest rule that would allow it.
"""
EPILOG = """\
examples:
  ostiary-gateway can-i get pods --namespace team --user alice
  ostiary-gateway can-i create deployments.apps/scale web -n team --user alice --group dev --explain
  ostiary-gateway can-i get --path /metrics --group monitoring
  ostiary-gateway can-i delete pods -n team --user alice --can "get,list pods -n team" --explain
"""


class CanIAnswer(TypedDict):
    allowed: bool
    attributes: AttributesJson
    decision: DecisionJson
    explanation: NotRequired[ExplanationJson]


def configure(parser: argparse.ArgumentParser) -> None:
    parser.description, parser.epilog = DESCRIPTION, EPILOG
    add_question(parser)
    parser.add_argument("--user", metavar="NAME", help="the user (default: you; with --group, any member of it)")
    parser.add_argument(
        "--group", action="append", default=[], metavar="NAME", help="a group of the user; may be repeated"
    )
    parser.add_argument(
        "--can",
        action="append",
        metavar="RULE",
        help="with a token that may do only this, as in ostiary token --can; may be repeated",
    )
    parser.add_argument("--explain", action="store_true", help="show the reason, and which rule would change it")
    add_config(parser)
    add_output(parser)
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    request_without_upstream, config = question(arguments), load(arguments)
    upstream = chosen_upstream(arguments.upstream, config)
    request = replace(request_without_upstream, upstream=upstream, of_kubernetes=speaks_kubernetes(upstream, config))
    delegation = narrow(None, parse_scope("; ".join(arguments.can))) if arguments.can else None
    attributes = Attributes(_user(arguments), request)
    answer = run_async(_ask(config, attributes, delegation, explain=arguments.explain))
    if arguments.output == JSON:
        print_json(answer)
    else:
        word, style = ("yes", Style.GOOD) if answer["allowed"] else ("no", Style.BAD)
        print(paint(word, style, sys.stdout))
        if arguments.explain:
            print_rows([("asked", asked_text(answer["attributes"])), ("decision", verdict_text(answer["decision"]))])
            print_steps(answer["explanation"])
    for note in misspelling_notes(request, config, allowed=answer["allowed"]):
        print_note(note)
    _note_prefixes(config, arguments)
    return OK if answer["allowed"] else FAILED


def _note_prefixes(config: GatewayConfig, arguments: argparse.Namespace) -> None:
    """Note names that no user can have because they lack the provider's prefix, although the policy may match them."""
    from ostiary_gateway.authorization.who_can import PossibleSubjects

    possible = PossibleSubjects.from_config(config)
    names = (
        [] if arguments.user is None else [("has the name", arguments.user, possible.can_be_user, possible.near_user)]
    )
    names += [("is in the group", name, possible.can_be_group, possible.near_group) for name in arguments.group]
    for what, name, can_be, near in names:
        if not possible.anybody and not can_be(name) and (suggestion := near(name)):
            print_note(f'nobody who signs in here {what} "{name}": did you mean "{suggestion}"?')


async def _ask(
    config: GatewayConfig, attributes: Attributes, delegation: Delegation | None, *, explain: bool
) -> CanIAnswer:
    from ostiary_gateway.api.operator_json import attributes_json, decision_json, explanation_json
    from ostiary_gateway.authorization.token_scope import explain_refusal_by_scope, refusal_by_scope
    from ostiary_gateway.policy.source import open_policy

    refusal = refusal_by_scope(delegation, (attributes.request,), generation=0)
    async with open_policy(config.authorization, config.upstreams) as policy:
        if not explain:
            decision: Decision = refusal or await policy.authorizer.authorize(attributes)
            explanation_output = None
        else:
            explanation = await policy.authorizer.explain(attributes)
            if refusal is not None:
                explanation = explain_refusal_by_scope(explanation, refusal, refusal.scope, attributes.request)
            if explanation.decision is None:
                raise ProviderError("the policy could not decide", cause=explanation.error)
            decision, explanation_output = explanation.decision, cast(ExplanationJson, explanation_json(explanation))
    answer: CanIAnswer = {
        "allowed": decision.allowed,
        "attributes": cast(AttributesJson, attributes_json(attributes)),
        "decision": cast(DecisionJson, decision_json(decision)),
    }
    return answer if explanation_output is None else {**answer, "explanation": explanation_output}


def _user(arguments: argparse.Namespace) -> UserInfo:
    groups = tuple(arguments.group)
    if arguments.user is not None:
        return UserInfo(arguments.user, groups=groups)
    if groups:
        # Only authenticated users are members of groups.
        return UserInfo("", groups=(*groups, AUTHENTICATED))
    return UserInfo(login_name())
