"""Which API groups somebody other than the upstream may serve, and how their versions are called. Pure.

Used by the settings of API plugins, by the API that registers them, and for the groups that providers serve.
"""

from __future__ import annotations

import re

_LABEL = r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?"
# A domain name with a dot: the groups without one are Kubernetes' own (apps, batch, policy).
GROUP_PATTERN = rf"(?=.{{1,200}}$){_LABEL}(\.{_LABEL})+"
VERSION_PATTERN = r"v[1-9][0-9]{0,3}((alpha|beta)[1-9][0-9]{0,3})?"
MOST_VERSIONS = 8
# Groups of Kubernetes and of the gateway, with all below them.
RESERVED_GROUPS = ("k8s.io", "kubernetes.io", "ostiary.dev")

NO_GROUP = "it is not the name of an API group with a domain of its own, as in builds.example.com"
NO_VERSION = "it is not a version such as v1 or v1beta1"


def group_mistake(group: str) -> str:
    """What is wrong with a group of one's own; empty if nothing is."""
    if not re.fullmatch(GROUP_PATTERN, group, re.ASCII):
        return NO_GROUP
    reserved = next((each for each in RESERVED_GROUPS if group == each or group.endswith(f".{each}")), None)
    return f"groups below {reserved} are reserved" if reserved is not None else ""


def version_mistake(version: str) -> str:
    return "" if re.fullmatch(VERSION_PATTERN, version, re.ASCII) else NO_VERSION
