"""``ostiary policy``: judge a policy, compare two, or replay against a new one what people really did."""

from __future__ import annotations

import argparse
import os
import sys
from typing import TYPE_CHECKING, cast

from ostiary.cli.arguments import JSON, UsageError, add_output
from ostiary.cli.exit_codes import FAILED, OK
from ostiary.cli.gateway.choice import DEFAULT, add_config, run_async
from ostiary.cli.output import Style, paint, print_json, print_note, rows
from ostiary.cli.policy.decision_output import AttributesJson, object_text
from ostiary.core.extras import needing
from ostiary.core.text import printable
from ostiary.errors import ConfigurationError

if TYPE_CHECKING:
    from ostiary.gateway.audit.recorded import Counts
    from ostiary.gateway.config.settings import GatewayConfig
    from ostiary.gateway.policy.diff import Change
    from ostiary.gateway.policy.replay import Difference, Replay
    from ostiary.interfaces.authorization import Finding, Subject

GAIN, LOSS, ANY, NEVER = FAIL_ON = ("gain", "loss", "any", "never")

LINT_HELP = """\
Report errors and likely mistakes in a policy, each with its line and its fix: rules that can never match, bindings to
roles that do not exist, rules that apply to everybody. FILES are files or directories; of which type they
are is seen from their names (.jsonl: abac; otherwise RBAC manifests) or said with --type.

With the configuration of a gateway (--config, or gateway.yaml in this directory) it also reports the lines that can
match nobody who signs in there: users and groups that no configured provider can produce.

Exit code 1 if there are errors; warnings and hints alone give 0.
"""
LINT_EXAMPLES = """\
examples:
  ostiary policy lint policy/
  ostiary policy lint --type abac policy.jsonl --output json
"""
DIFF_HELP = """\
Show who gains and who loses permissions between two policies, for all subjects and rules that either mentions. OLD
and NEW are files, directories, or whole gateway.yaml files, whose chains are then compared. Moving rules between
files, roles or bindings changes nothing; permissions through a group are shown for the group.

Exit code 1 if anybody gains a permission; --fail-on chooses what counts.
"""
DIFF_EXAMPLES = """\
examples:
  ostiary policy diff policy-in-force/ policy/
  ostiary policy diff gateway.yaml new-gateway.yaml --fail-on any --output json
"""
REPLAY_HELP = """\
Decide recorded requests again, with the policy of a candidate gateway.yaml, and print the decisions that differ:
who would gain or lose access that they used. AUDIT_LOG is the audit log of the gateway, or of kube-apiserver: one event
on a line.

Exit code 1 if decisions differ, or if a request could not be decided; --fail-on chooses what counts.
"""
REPLAY_EXAMPLES = """\
examples:
  ostiary policy replay --config new-gateway.yaml /var/log/ostiary/audit.log
  ostiary policy replay --config new-gateway.yaml --fail-on loss audit.log audit.log.1
"""


def configure(parser: argparse.ArgumentParser) -> None:
    verbs = parser.add_subparsers(required=True, metavar="lint|diff|replay")
    _configure_lint(verbs.add_parser("lint", help="mistakes", description=LINT_HELP, epilog=LINT_EXAMPLES))
    _configure_diff(verbs.add_parser("diff", help="compare two policies", description=DIFF_HELP, epilog=DIFF_EXAMPLES))
    _configure_replay(
        verbs.add_parser(
            "replay",
            help="decide recorded requests again with a new policy",
            description=REPLAY_HELP,
            epilog=REPLAY_EXAMPLES,
        )
    )


def _configure_lint(parser: argparse.ArgumentParser) -> None:
    _add_type(parser)
    add_config(parser)
    add_output(parser)
    parser.add_argument("files", metavar="FILES", nargs="+", help="the policy: files and directories")
    parser.set_defaults(run=lint_policy)


def _configure_diff(parser: argparse.ArgumentParser) -> None:
    _add_type(parser)
    _add_fail_on(parser, GAIN)
    add_output(parser)
    parser.add_argument("old", metavar="OLD", help="the policy in force")
    parser.add_argument("new", metavar="NEW", help="the new policy")
    parser.set_defaults(run=diff_policies)


def _configure_replay(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-c", "--config", metavar="FILE", required=True, help="the candidate's configuration")
    _add_fail_on(parser, ANY)
    add_output(parser)
    parser.add_argument("logs", metavar="AUDIT_LOG", nargs="+", help="the audit log to replay")
    parser.set_defaults(run=replay_logs)


def _add_type(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--type", metavar="NAME", help="the authorization provider whose policy it is (default: by name)"
    )


def _add_fail_on(parser: argparse.ArgumentParser, default: str) -> None:
    parser.add_argument(
        "--fail-on", choices=FAIL_ON, default=default, help="what makes the exit code 1 (default: %(default)s)"
    )


def _code(fail_on: str, *, gains: int, losses: int) -> int:
    counted = {GAIN: gains, LOSS: losses, ANY: gains + losses, NEVER: 0}
    return FAILED if counted[fail_on] else OK


# --- lint ---


def lint_policy(arguments: argparse.Namespace) -> int:
    from ostiary.gateway.policy.source import is_gateway, lint
    from ostiary.interfaces.authorization import Level

    for path in arguments.files:
        if is_gateway(path):
            # It would pass for a file without any rules in it.
            raise UsageError(f"{path} is the configuration of a gateway", hint=f"ostiary serve --check --config {path}")
    findings = (*lint(arguments.files, arguments.type), *_unmatched_findings(arguments))
    ok = not any(finding.level is Level.ERROR for finding in findings)
    if arguments.output == JSON:
        print_json({"ok": ok, "findings": [_finding_json(finding) for finding in findings]})
    else:
        for finding in findings:
            _print_finding(finding)
        counts = [f"{sum(finding.level is level for finding in findings)} {level.value}" for level in Level]
        print(", ".join(count for count in counts if not count.startswith("0 ")) or "no problems")
    return OK if ok else FAILED


def _unmatched_findings(arguments: argparse.Namespace) -> tuple[Finding, ...]:
    """The lines that can match nobody, as far as it is known who can sign in."""
    from ostiary.gateway.config import load
    from ostiary.gateway.policy.possible_subjects import PossibleSubjects
    from ostiary.gateway.policy.source import lint_subjects

    if arguments.config is None and not os.path.exists(DEFAULT):
        return ()
    try:
        config = load(arguments.config or DEFAULT)
    except ConfigurationError as error:
        if arguments.config is not None:
            raise
        print_note(f"{DEFAULT} cannot be used, so it is not known who can sign in: {error.cause or error.summary}")
        return ()
    return lint_subjects(arguments.files, PossibleSubjects.from_config(config), arguments.type)


def _finding_json(finding: Finding) -> dict[str, object]:
    place = finding.problem.place
    return {
        "level": finding.level.value,
        "rule": finding.rule,
        "message": finding.problem.message,
        "fix": finding.problem.hint or "",
        "file": place.file,
        "path": place.path,
        "line": place.line,
    }


def _print_finding(finding: Finding) -> None:
    styles = {"error": Style.BAD, "warning": Style.DOUBTFUL, "info": Style.FAINT}
    level = paint(finding.level.value.upper(), styles[finding.level.value], sys.stdout)
    print(f"{level} {finding.rule}  {printable(str(finding.problem.place))}")
    parts = [("what", finding.problem.message), *([("fix", finding.problem.hint)] if finding.problem.hint else [])]
    for row in rows(parts, stream=sys.stdout):
        print(row)
    print()


# --- diff ---


def diff_policies(arguments: argparse.Namespace) -> int:
    changes = run_async(_differences(arguments.old, arguments.new, arguments.type))
    gains = sum(change.effect.value == GAIN for change in changes)
    losses = len(changes) - gains
    if arguments.output == JSON:
        print_json({"changes": [_change_json(change) for change in changes], "gains": gains, "losses": losses})
    else:
        _print_changes(changes)
        print(f"gains: {gains}, losses: {losses}" if changes else "no changes: nobody gains or loses a permission")
    return _code(arguments.fail_on, gains=gains, losses=losses)


async def _differences(old_path: str, new_path: str, plugin_type: str | None) -> tuple[Change, ...]:
    from ostiary.gateway.policy.diff import differences
    from ostiary.gateway.policy.source import open_policy_at

    async with (
        open_policy_at(old_path, plugin_type) as old,
        open_policy_at(new_path, plugin_type) as new,
    ):
        unlisted = sorted({*old.unlisted, *new.unlisted})
        if unlisted and not old.grants and not new.grants:
            # Comparing nothing would look like a comparison that found nothing.
            raise ConfigurationError(
                "these policies cannot be compared",
                cause=f"{', '.join(unlisted)} cannot list what the policy allows",
                hint="ostiary policy replay compares the decisions on recorded requests, with any provider",
                code="config-invalid",
            )
        for name in unlisted:
            print_note(f'what the provider "{name}" allows is compared only as far as other rules mention it')
        return await differences(old, new)


def _print_changes(changes: tuple[Change, ...]) -> None:
    last: Subject | None = None
    for change in changes:
        if change.subject != last:
            last = change.subject
            print(printable(_subject_text(change.subject)))
        sign = paint("+", Style.BAD, sys.stdout) if change.effect.value == GAIN else paint("-", Style.GOOD, sys.stdout)
        print(f"  {sign} {printable(_change_text(change))}")


def _subject_text(subject: Subject) -> str:
    where = f' of namespace "{subject.namespace}"' if subject.namespace else ""
    return f'{subject.kind} "{subject.name}"{where}'


def _change_text(change: Change) -> str:
    at = f' at upstream "{change.upstream}"' if change.upstream else ""
    verbs = ", ".join(change.verbs)
    if change.paths:
        return f"{verbs} on {', '.join(change.paths)}{at}"
    group = f" of API group {change.api_group}" if change.api_group else ""
    name = f' named "{change.name}"' if change.name else ""
    where = f' in namespace "{change.namespace}"' if change.namespace else " in the whole cluster"
    return f"{verbs} on {', '.join(change.resources)}{group}{name}{where}{at}"


def _change_json(change: Change) -> dict[str, object]:
    subject = {"kind": change.subject.kind, "name": change.subject.name, "namespace": change.subject.namespace}
    fields: dict[str, object] = {"effect": change.effect.value, "subject": subject, "verbs": list(change.verbs)}
    if change.upstream:
        fields["upstream"] = change.upstream
    if change.paths:
        return fields | {"paths": list(change.paths)}
    where = {"group": change.api_group, "namespace": change.namespace, "name": change.name}
    return fields | {"resources": list(change.resources)} | where


# --- replay ---


def replay_logs(arguments: argparse.Namespace) -> int:
    from ostiary.gateway import config
    from ostiary.gateway.audit.recorded import Counts

    counts = Counts()
    replay = run_async(_replay(config.load(arguments.config), arguments.logs, counts))
    if not replay.asked:
        # A gate that tried nothing must not be an open one.
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
    if counts.unreadable:
        print_note(f"{counts.unreadable} lines are not audit events and were skipped")
    if replay.failed:
        print_note(f"{replay.failed} requests could not be decided: {replay.error}")
        return FAILED
    return _code(arguments.fail_on, gains=gains, losses=losses)


async def _replay(config: GatewayConfig, logs: list[str], counts: Counts) -> Replay:
    with needing("gateway"):
        from ostiary.gateway.policy.replay import replay, requiring_more
    from ostiary.gateway.audit.recorded import read, with_upstream
    from ostiary.gateway.policy.source import open_policy

    upstreams = [upstream.name for upstream in config.upstreams]
    async with open_policy(config.authorization, config.upstreams) as policy:
        records = (with_upstream(record, upstreams) for record in read(logs, counts))
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
    from ostiary.gateway.doors.operator_json import attributes_json
    from ostiary.model import Attributes, UserInfo

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
