"""Printing of decisions and their explanations, from the JSON that the operator API also returns."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TypedDict

from ostiary.cli.output import Style, paint, rows
from ostiary.core.text import printable
from ostiary_gateway.authorization.implied_groups import AUTHENTICATED

WIDTH = 8


class AttributesJson(TypedDict, total=False):
    """The attributes of a request, in the format of `ostiary_gateway.api.operator_json`."""

    user: str
    groups: list[str]
    verb: str
    path: str
    group: str
    resource: str
    subresource: str
    namespace: str
    name: str
    upstream: str


class DecisionJson(TypedDict):
    verdict: str
    reason: str
    hidden: bool


class StepJson(TypedDict, total=False):
    """One provider of the chain: its decision, or why it could not be queried."""

    provider: str
    error: str
    verdict: str
    reason: str
    hidden: bool
    closest: str
    failed: str
    remedy: str


class ExplanationJson(TypedDict):
    decision: DecisionJson | None
    error: str
    steps: list[StepJson]


def asked_text(attributes: AttributesJson) -> str:
    """Return a request as text, such as: User "alice" (groups: dev): get pods/log "web" in namespace "team"."""
    user = attributes.get("user", "")
    who = f'User "{user}"' if user else "somebody"
    # The group of authenticated users is omitted if the user is named.
    group_names = [group for group in attributes.get("groups") or () if not user or group != AUTHENTICATED]
    groups = f" (groups: {', '.join(group_names)})" if group_names else ""
    if "path" in attributes:
        return f"{who}{groups}: {attributes.get('verb')} {attributes['path']}"
    return f"{who}{groups}: {attributes.get('verb')} {object_text(attributes)}"


def object_text(attributes: AttributesJson) -> str:
    resource, group = attributes.get("resource", ""), attributes.get("group", "")
    what = f"{resource}.{group}" if group else str(resource)
    if attributes.get("subresource"):
        what += f"/{attributes['subresource']}"
    name = f' "{attributes["name"]}"' if attributes.get("name") else ""
    where = f' in namespace "{attributes["namespace"]}"' if attributes.get("namespace") else " in the whole cluster"
    return what + name + where


def verdict_text(decision: DecisionJson | None, error: str = "") -> str:
    if decision is None:
        return f"could not be decided: {error}"
    allowed = decision["verdict"] == "allow"
    word = "allowed" if allowed else "refused, as though it were not there" if decision.get("hidden") else "refused"
    return f"{word}: {decision['reason']}" if decision.get("reason") else word


def print_rows(parts: Iterator[tuple[str, str]] | list[tuple[str, str]]) -> None:
    for row in rows(parts, stream=sys.stdout, width=WIDTH):
        print(row)


def print_steps(explanation: ExplanationJson) -> None:
    """Print for every provider of the chain its decision, the closest rule, what failed, and what would fix it."""
    for step in explanation["steps"]:
        print(f"\n{paint(printable(str(step['provider'])), Style.FAINT, sys.stdout)}: {_step_text(step)}")
        reasons = (("closest", step.get("closest")), ("failed", step.get("failed")))
        print_rows([(key, text) for key, text in reasons if text])
        if step.get("remedy"):
            print("\n  The smallest rule that would allow it:\n")
            for line in str(step["remedy"]).splitlines():
                print(f"    {printable(line)}".rstrip())


def _step_text(step: StepJson) -> str:
    if step.get("error"):
        return f"unavailable: {printable(step['error'])}"
    if "verdict" not in step:
        return "not evaluated: an earlier provider decided"
    return printable(f"{step['verdict']}: {step['reason']}" if step.get("reason") else step["verdict"])
