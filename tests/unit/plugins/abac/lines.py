"""Lines of abac policies, requests and users, in short."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ostiary.model import RequestInfo, UserInfo
from ostiary.plugins.abac.authorization import AbacAuthorization
from ostiary.plugins.abac.policy_lines import PolicyLines
from ostiary.plugins.abac.reading import API_VERSION, parse
from ostiary.plugins.common.policy_files import PolicyText

KNOWN = "system:authenticated"


def v1(**spec: Any) -> str:
    return json.dumps({"apiVersion": API_VERSION, "kind": "Policy", "spec": spec})


def v0(**fields: Any) -> str:
    return json.dumps(fields)


def policies(*lines: str) -> PolicyLines:
    return parse([PolicyText("policy.jsonl", "\n".join(lines))])


def provider(tmp_path: Path, *lines: str, **options: Any) -> AbacAuthorization:
    file = tmp_path / "policy.jsonl"
    file.write_text("\n".join(lines))
    return AbacAuthorization([file], **options)


def user(name: str, *groups: str) -> UserInfo:
    return UserInfo(name, groups=groups)


def resource(verb: str = "get", name: str = "pods", namespace: str = "", group: str = "", **more: Any) -> RequestInfo:
    return RequestInfo(verb, "", "", True, api_group=group, resource=name, namespace=namespace, **more)


def path(verb: str, text: str) -> RequestInfo:
    return RequestInfo(verb, verb.upper(), text)


def allows(found: PolicyLines, who: UserInfo, what: RequestInfo) -> bool:
    return any(policy.allows(what) for policy in found.of(who))
