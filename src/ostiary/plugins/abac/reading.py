"""Reads abac policy files, one JSON object per line. Called by the abac provider through `plugins.common.policy_files`.

Lines that are blank or begin with ``#`` do not count; lines without a version are of the form before v1beta1. A field
that we do not know is a mistake, though Kubernetes reads over it: it was meant to restrict something.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from ostiary.core.users.implied_groups import AUTHENTICATED
from ostiary.model import Place, Problem
from ostiary.plugins.abac.policy_lines import ANY, PolicyLine, PolicyLines
from ostiary.plugins.common.policy_files import PolicyText, invalid_policy

API_VERSION = "abac.authorization.kubernetes.io/v1beta1"


class _Kind(msgspec.Struct, rename="camel"):
    api_version: str | None = None
    kind: str | None = None


class _Spec(msgspec.Struct, rename="camel", forbid_unknown_fields=True):
    user: str = ""
    group: str = ""
    readonly: bool = False
    api_group: str = ""
    resource: str = ""
    namespace: str = ""
    non_resource_path: str = ""


class _Versioned(msgspec.Struct, rename="camel", forbid_unknown_fields=True):
    api_version: str
    kind: str
    spec: _Spec


class _Unversioned(msgspec.Struct, forbid_unknown_fields=True):
    user: str = ""
    group: str = ""
    readonly: bool = False
    resource: str = ""
    namespace: str = ""


# Built once: building a decoder while another thread does the same crashes msgspec 0.22.
_KIND, _VERSIONED, _UNVERSIONED = (
    msgspec.json.Decoder(_Kind),
    msgspec.json.Decoder(_Versioned),
    msgspec.json.Decoder(_Unversioned),
)


def parse(texts: Sequence[PolicyText]) -> PolicyLines:
    """The policy of these files; raises `ConfigurationError` that lists every mistake with its line."""
    policies, problems = list[PolicyLine](), list[Problem]()
    for text in texts:
        # Not splitlines(): some of what it takes for the end of a line may stand in a JSON string.
        for number, line in enumerate(text.text.split("\n"), start=1):
            if not (stripped := line.strip()) or stripped.startswith("#"):
                continue
            place = Place(text.file, line=number)
            try:
                policies.append(_policy(stripped, place))
            except ValueError as error:
                problems.append(Problem(str(error), place))
    if problems:
        raise invalid_policy(problems)
    return PolicyLines(policies)


def _policy(line: str, place: Place) -> PolicyLine:
    try:
        header = _KIND.decode(line)
        if header.api_version is None and header.kind is None:
            return _from_unversioned(_UNVERSIONED.decode(line), place)
        if (header.api_version, header.kind) != (API_VERSION, "Policy"):
            raise ValueError(f"it must have apiVersion {API_VERSION} and kind Policy, or neither")
        return _from_versioned(_VERSIONED.decode(line), place)
    except msgspec.ValidationError as error:
        raise ValueError(str(error)) from None
    except (msgspec.DecodeError, RecursionError):
        raise ValueError("it is not one JSON object") from None


def _from_versioned(line: _Versioned, place: Place) -> PolicyLine:
    spec = line.spec
    user, group = _subject_of(spec.user, spec.group)
    return PolicyLine(
        place, user, group, spec.readonly, spec.api_group, spec.resource, spec.namespace, spec.non_resource_path
    )


def _from_unversioned(line: _Unversioned, place: Place) -> PolicyLine:
    user, group = _subject_of(line.user, line.group) if line.user or line.group else ("", AUTHENTICATED)
    return PolicyLine(
        place,
        user,
        group,
        line.readonly,
        ANY,
        line.resource or ANY,
        line.namespace or ANY,
        "" if line.resource or line.namespace else ANY,
    )


def _subject_of(user: str, group: str) -> tuple[str, str]:
    # As in Kubernetes: a star in either field means every authenticated user, whatever the other field says.
    return ("", AUTHENTICATED) if ANY in (user, group) else (user, group)
