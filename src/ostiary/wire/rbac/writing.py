"""Writes roles and bindings as YAML manifests. Pure."""

from __future__ import annotations

import json

from ostiary.wire.rbac.objects import (
    GROUP,
    SERVICE_ACCOUNT,
    V1,
    Binding,
    Role,
)


def as_yaml(item: Role | Binding) -> str:
    """The manifest of *item*, as short as can be. Every value is in quotes: YAML reads ``y`` and ``012`` otherwise."""
    lines = [f"apiVersion: {V1}", f"kind: {item.kind}", "metadata:", f"  name: {_quote(item.name)}"]
    if item.namespace:
        lines.append(f"  namespace: {_quote(item.namespace)}")
    lines += _role_lines(item) if isinstance(item, Role) else _binding_lines(item)
    return "\n".join(lines) + "\n"


def _role_lines(role: Role) -> list[str]:
    lines = ["rules:"]
    for rule in role.rules:
        parts = {
            "verbs": rule.verbs,
            "apiGroups": rule.api_groups,
            "resources": rule.resources,
            "resourceNames": rule.resource_names,
            "nonResourceURLs": rule.non_resource_urls,
        }
        rows = [f"{key}: [{', '.join(map(_quote, values))}]" for key, values in parts.items() if values]
        lines += [f"{'  ' if number else '- '}{row}" for number, row in enumerate(rows)]
    return lines


def _binding_lines(binding: Binding) -> list[str]:
    lines = [
        "roleRef:",
        f"  apiGroup: {GROUP}",
        f"  kind: {binding.role_kind}",
        f"  name: {_quote(binding.role_name)}",
    ]
    lines.append("subjects:")
    for subject in binding.subjects:
        lines += [f"- kind: {subject.kind}", f"  name: {_quote(subject.name)}"]
        if subject.kind == SERVICE_ACCOUNT:
            lines.append(f"  namespace: {_quote(subject.namespace)}")
        else:
            lines.append(f"  apiGroup: {GROUP}")
    return lines


def _quote(text: str) -> str:
    # JSON's escapes are YAML's too, but for characters outside of the basic plane, which JSON spells as two.
    quoted = json.dumps(text, ensure_ascii=False)
    return "".join(char if char.isprintable() else f"\\U{ord(char):08X}" for char in quoted)
