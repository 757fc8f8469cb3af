"""``ostiary-gateway explain``: a denied request by its id, with the decision at that time and the reason."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from ostiary.cli.arguments import JSON, UsageError, add_output
from ostiary.cli.exit_codes import OK
from ostiary.cli.output import print_json
from ostiary.core.text import printable
from ostiary.errors import OstiaryError
from ostiary_gateway.cli.options import add_config, add_server, config_path, load, remote, run_async
from ostiary_gateway.cli.policy.decision_output import asked_text, print_rows, print_steps, verdict_text

if TYPE_CHECKING:
    from ostiary_gateway.cli.remote import ApiObject, RemoteGateway
    from ostiary_gateway.config.gateway_config import GatewayConfig

DESCRIPTION = """\
Explain why the gateway denied a request. Every response has an Audit-Id header, and every error page shows a request
id: ask the user for it. This prints the request, the decision at that time, and the decision of the policy
as it is now: the closest rule, the one condition that failed, and the smallest rule that would allow it. For a
failed sign-in, and for a request without a valid credential, it prints what failed.

The request is searched for in the audit log of the configuration, rotated files included; or, with --server, in the
memory of a running gateway, which keeps denied requests for about a day; any of its replicas can be asked.
"""
EPILOG = """\
examples:
  ostiary-gateway explain 1f0c5b1e-6d6e-4c39-9a52-7b9d9d2c1e55 --config gateway.yaml
  ostiary-gateway explain 1f0c5b1e-6d6e-4c39-9a52-7b9d9d2c1e55 --audit-log /var/log/audit-2026-01.log
  ostiary-gateway explain 1f0c5b1e-6d6e-4c39-9a52-7b9d9d2c1e55 --server https://gateway.example.com
"""


class DecisionNotFound(OstiaryError):
    default_code = "decision-not-found"


def configure(parser: argparse.ArgumentParser) -> None:
    parser.description, parser.epilog = DESCRIPTION, EPILOG
    parser.add_argument("id", metavar="ID", help="the Audit-Id of the response, or the request id on the page")
    parser.add_argument(
        "--audit-log", action="append", metavar="FILE", help="search this audit log instead; may be repeated"
    )
    add_config(parser)
    add_server(parser, beside_config=True)
    add_output(parser)
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    if arguments.server is not None and arguments.audit_log:
        raise UsageError("--audit-log and --server cannot be combined", hint="leave one of them out")
    gateway = remote(arguments)
    explanation = _ask_gateway(gateway, arguments.id) if gateway is not None else _search_logs(arguments)
    if arguments.output == JSON:
        print_json(explanation)
    else:
        _print(explanation)
    return OK


def _print(explanation: ApiObject) -> None:
    print(printable(f"{explanation['id']}, {explanation['at']}"))
    if "now" not in explanation:
        _print_end(explanation)
        return
    now = explanation["now"]
    status = [("answered", f"status {explanation['status']}")] if "status" in explanation else []
    print_rows(
        [
            ("asked", asked_text(explanation["attributes"])),
            ("then", verdict_text(explanation["then"])),
            *status,
            ("now", verdict_text(now["decision"], now.get("error", ""))),
        ]
    )
    print_steps(now)


def _print_end(ended: ApiObject) -> None:
    """Print a request without a decision: a sign-in, or an unauthenticated request."""
    login, user = ended.get("login"), ended.get("user", "")
    who = f'User "{user}"' if user else "somebody"
    where = f" from {ended['from']}" if ended.get("from") else ""
    with_provider = f" with {ended['provider']}" if ended.get("provider") else ""
    what = [("sign-in", f"{login}{with_provider}")] if login else []
    reason = [("reason", ended["reason"])] if ended.get("reason") else []
    print_rows(
        [
            ("asked", f"{who}{where}: {ended.get('method', '')} {ended.get('path', '')}"),
            *what,
            ("answered", f"status {ended['status']}"),
            *reason,
            ("decided", "nothing: the request ended before the policy was evaluated"),
        ]
    )


def _ask_gateway(gateway: RemoteGateway, decision_id: str) -> ApiObject:
    from ostiary_gateway.cli.remote import GatewayRefused

    try:
        return gateway.get("decisions", decision_id)
    except GatewayRefused as error:
        if error.status != 404:
            raise
        hint = (
            "a gateway keeps denied requests for about a day, unless there are very many; search its audit log with"
            " --config"
        )
        raise DecisionNotFound("unknown request id: the gateway remembers no such decision", hint=hint) from None


def _search_logs(arguments: argparse.Namespace) -> ApiObject:
    config = load(arguments)
    logs = arguments.audit_log or _logs(config, config_path(arguments))
    return run_async(_explain_record(config, logs, arguments.id))


async def _explain_record(config: GatewayConfig, logs: list[str], decision_id: str) -> ApiObject:
    from ostiary_gateway.api.operator_json import decided_json, ended_json
    from ostiary_gateway.audit.ended_requests import EndedRequest
    from ostiary_gateway.audit.recorded import find
    from ostiary_gateway.authorization.denials import Refusal
    from ostiary_gateway.policy.replay import stripped_prefixes
    from ostiary_gateway.policy.source import open_policy

    names = [upstream.name for upstream in config.upstreams]
    record = find(logs, decision_id, upstreams=names, prefixes=stripped_prefixes(config))
    if record is None:
        raise DecisionNotFound(
            "unknown request id: no audit log records such a decision",
            cause=f"searched {len(logs)} {'log' if len(logs) == 1 else 'logs'}",
            where=", ".join(logs),
            hint="name an older log with --audit-log, or ask a running gateway with --server",
        )
    if isinstance(record, EndedRequest):
        return ended_json(record)
    async with open_policy(config.authorization, config.upstreams) as policy:
        now = await policy.authorizer.explain(record.attributes)
    fields = decided_json(Refusal(record.id, record.attributes, record.decision, record.at, record.scope), now)
    # An allowed request may still have failed: over a limit, or at the upstream.
    return {**fields, "status": record.status} if record.decision.allowed and record.status >= 400 else fields


def _logs(config: GatewayConfig, where: str) -> list[str]:
    """Return the audit log and its rotated files, the newest first, without compressed ones."""
    from ostiary_gateway.capabilities import ability
    from ostiary_gateway.interfaces.audit import KeepsEventsInFile

    in_files = (ability(provider.instance, KeepsEventsInFile) for provider in config.audit_sinks)
    sink = next((each for each in in_files if each is not None), None)
    if sink is None:
        raise DecisionNotFound(
            "this gateway has no audit log file",
            where=f"{where}, audit.log",
            hint="name one with --audit-log, or ask the running gateway with --server",
        )
    path = Path(sink.events_file)
    rotated = [
        file for file in path.parent.glob(f"{path.name}[.-]*") if file.suffix not in (".gz", ".bz2", ".xz", ".zst")
    ]
    current = [path] if path.exists() else []
    return [str(file) for file in (*current, *sorted(rotated, key=lambda file: -file.stat().st_mtime))] or [str(path)]
