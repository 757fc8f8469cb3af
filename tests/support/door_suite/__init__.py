"""One suite for all doors: requests, ways to send them, and what must hold.

cases   tests.support.door_cases, and the modules here named after what their requests are about
doors   built-in, the proxies, the webhooks and both middlewares: objects with `send(case) -> Outcome` (`drivers`)
rules   what is allowed, and who the users are (`policy`)
judge   whether an outcome is the one that a case says, or differs for a documented reason
"""

from __future__ import annotations

from tests.support.door_cases import CASES, Case
from tests.support.door_suite import framing, header_cases, kubernetes, targets, templates

SUITE: list[Case] = [*CASES, *kubernetes.CASES, *templates.CASES, *targets.CASES, *header_cases.CASES, *framing.CASES]
