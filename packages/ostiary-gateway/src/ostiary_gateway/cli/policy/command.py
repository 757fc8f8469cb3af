"""``ostiary-gateway policy``: lint a policy, compare two, or replay recorded requests against a new one."""

from __future__ import annotations

import argparse
import os
import sys
from typing import TYPE_CHECKING

from ostiary.cli.arguments import JSON, UsageError, add_output
from ostiary.cli.exit_codes import FAILED, OK
from ostiary.cli.output import Style, paint, print_json, print_note, rows
from ostiary.core.text import printable
from ostiary.errors import ConfigurationError
from ostiary_gateway.cli.options import DEFAULT, add_config, run_async
from ostiary_gateway.cli.policy import replay, shadow, suggest
from ostiary_gateway.cli.policy.replay import GAIN, add_fail_on, exit_code

if TYPE_CHECKING:
    from ostiary_gateway.interfaces.authorization import Finding, Subject
    from ostiary_gateway.policy.diff import Change

LINT_HELP = """\
Report errors and likely mistakes in a policy, each with its line and its fix: rules that can never match, bindings to
roles that do not exist, rules that apply to everybody. FILES are files or directories. A provider may declare a file
name extension for its policies; other files are RBAC manifests. --type selects the provider explicitly.

With the configuration of a gateway (--config, or gateway.yaml in this directory) it also reports the lines that can
match nobody who signs in there: users and groups that no configured provider can produce.

Exit code 1 if there are errors; warnings and hints alone give 0.
"""
LINT_EXAMPLES = """\
examples:
  ostiary-gateway policy lint policy/
  ostiary-gateway policy lint policy/ --output json
"""
DIFF_HELP = """\
Show who gains and who loses permissions between two policies, for all subjects and rules that either mentions. OLD
and NEW are files, directories, or whole gateway.yaml files, whose chains are then compared. Moving rules between
files, roles or bindings changes nothing; permissions through a group are shown for the group.

Exit code 1 if anybody gains a permission; --fail-on chooses what counts.
"""
DIFF_EXAMPLES = """\
examples:
  ostiary-gateway policy diff policy-in-force/ policy/
  ostiary-gateway policy diff gateway.yaml new-gateway.yaml --fail-on any --output json
"""


def configure(parser: argparse.ArgumentParser) -> None:
    verbs = parser.add_subparsers(required=True, metavar="lint|diff|replay|suggest|shadow")
    _configure_lint(verbs.add_parser("lint", help="mistakes", description=LINT_HELP, epilog=LINT_EXAMPLES))
    _configure_diff(verbs.add_parser("diff", help="compare two policies", description=DIFF_HELP, epilog=DIFF_EXAMPLES))
    replay.configure(
        verbs.add_parser(
            "replay",
            help="decide recorded requests again with a new policy",
            description=replay.DESCRIPTION,
            epilog=replay.EPILOG,
        )
    )
    suggest.configure(
        verbs.add_parser("suggest", help="roles from use", description=suggest.DESCRIPTION, epilog=suggest.EPILOG)
    )
    shadow.configure(
        verbs.add_parser(
            "shadow",
            help="where the gateway and a cluster decide differently",
            description=shadow.DESCRIPTION,
            epilog=shadow.EPILOG,
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
    add_fail_on(parser, GAIN)
    add_output(parser)
    parser.add_argument("old", metavar="OLD", help="the policy in force")
    parser.add_argument("new", metavar="NEW", help="the new policy")
    parser.set_defaults(run=diff_policies)


def _add_type(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--type", metavar="NAME", help="the authorization provider whose policy it is (default: by name)"
    )


# --- lint ---


def lint_policy(arguments: argparse.Namespace) -> int:
    from ostiary_gateway.interfaces.authorization import Level
    from ostiary_gateway.policy.source import is_gateway, lint

    for path in arguments.files:
        if is_gateway(path):
            # It would be accepted as a policy file without rules.
            raise UsageError(
                f"{path} is the configuration of a gateway", hint=f"ostiary-gateway serve --check --config {path}"
            )
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
    """Return the rules whose subjects cannot match any user, as far as it is known who can sign in."""
    from ostiary_gateway.authorization.who_can import PossibleSubjects
    from ostiary_gateway.config import load
    from ostiary_gateway.policy.source import lint_subjects

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
    return exit_code(arguments.fail_on, gains=gains, losses=losses)


async def _differences(old_path: str, new_path: str, plugin_type: str | None) -> tuple[Change, ...]:
    from ostiary_gateway.policy.diff import differences
    from ostiary_gateway.policy.source import open_policy_at

    async with (
        open_policy_at(old_path, plugin_type) as old,
        open_policy_at(new_path, plugin_type) as new,
    ):
        unlisted = sorted({*old.unlisted, *new.unlisted})
        if unlisted and not old.grants and not new.grants:
            # Comparing nothing would look like a comparison without differences.
            raise ConfigurationError(
                "these policies cannot be compared",
                cause=f"{', '.join(unlisted)} cannot list what the policy allows",
                hint="ostiary-gateway policy replay compares the decisions on recorded requests, with any provider",
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
