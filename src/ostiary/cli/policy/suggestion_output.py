"""What ``ostiary policy suggest`` prints for one subject: what was used, what never, and the roles."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from ostiary.cli.output import Style, one_line, paint, print_note, print_table

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ostiary.gateway.policy.unused_rights import UnusedRight
    from ostiary.gateway.policy.usage import Right, SubjectUse, Use
    from ostiary.interfaces.authorization import Grant, Subject
    from ostiary.wire.rbac import PolicyRule

_REMARKS = {
    "system:masters": "a member of system:masters may do everything, without any role",
    "system:nodes": "the Node authorizer allows a node what its own pods need; a role would allow it on all objects",
    "system:unauthenticated": "a role for this user is one for everybody without a credential",
}


class SuggestionReport:
    """Of one subject."""

    def __init__(
        self, use: SubjectUse, grants: Iterable[Grant] | None, prefix: str, namespaces: Iterable[str] = ()
    ) -> None:
        from ostiary.gateway.policy.impersonation_role import manifest
        from ostiary.gateway.policy.suggested_role import suggested_objects
        from ostiary.gateway.policy.unused_rights import unused_rights

        self.use = use
        self.unused = () if grants is None else unused_rights(use, grants, frozenset(namespaces))
        self.manifest = manifest(suggested_objects(use.subject, use.uses, prefix=prefix))

    @property
    def who(self) -> str:
        return _who(self.use.subject)

    def print_notes(self) -> None:
        """What was left out, and why."""
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
    """A row for each resource in a namespace, with how often each verb was used."""
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
