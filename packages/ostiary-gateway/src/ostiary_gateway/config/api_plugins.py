"""The section ``apiPlugins`` of ``gateway.yaml``: processes that serve an API group beside a Kubernetes upstream."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, ClassVar

from ostiary.core.yaml import ConfigSection
from ostiary_gateway.config.kinds import NAME, PLAIN_PATH
from ostiary_gateway.config.listen import ClientTls
from ostiary_gateway.settings.declare import RawFields
from ostiary_gateway.settings.kinds import FilePath, Holds, KeyPlace, PrivateKey, Text, Texts
from ostiary_gateway.settings.outgoing import bad_pair
from ostiary_gateway.settings.sections import Section, Sections

# --- names of API groups and versions ---

_LABEL = r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?"
# A domain name with a dot: groups without one belong to Kubernetes (apps, batch, policy).
GROUP_PATTERN = rf"(?=.{{1,200}}$){_LABEL}(\.{_LABEL})+"
VERSION_PATTERN = r"v[1-9][0-9]{0,3}((alpha|beta)[1-9][0-9]{0,3})?"
MOST_VERSIONS = 8
# Groups of Kubernetes and of the gateway, including everything below them.
RESERVED_GROUPS = ("k8s.io", "kubernetes.io", "ostiary.dev")

NO_GROUP = "it is not the name of an API group with a domain of its own, as in builds.example.com"
NO_VERSION = "it is not a version such as v1 or v1beta1"


def group_mistake(group: str) -> str:
    """Return the error in a custom group's name; empty if there is none."""
    if not re.fullmatch(GROUP_PATTERN, group, re.ASCII):
        return NO_GROUP
    reserved = next((each for each in RESERVED_GROUPS if group == each or group.endswith(f".{each}")), None)
    return f"groups below {reserved} are reserved" if reserved is not None else ""


def version_mistake(version: str) -> str:
    return "" if re.fullmatch(VERSION_PATTERN, version, re.ASCII) else NO_VERSION


@dataclass(frozen=True, slots=True, kw_only=True)
class DeclaredApiPlugin:
    """One plugin. Its name consists of the upstream and the group: ``cluster.builds.example.com``."""

    group: Annotated[
        str,
        Text(
            "the API group that it serves: a domain of one's own, as in `builds.example.com`; never a group of"
            " Kubernetes, of the upstream, or of another plugin",
            pattern=GROUP_PATTERN,
            mistake=NO_GROUP,
            missing="required: the API group that it serves",
        ),
    ]
    versions: Annotated[
        tuple[str, ...],
        Texts(
            "the versions of the group that it serves, the preferred one first",
            pattern=VERSION_PATTERN,
            mistake=NO_VERSION,
            least=1,
            repeated="duplicate entry in the list",
            missing="required: the versions that it serves, as in [v1]",
        ),
    ]
    upstream: Annotated[
        str,
        Text(
            "the Kubernetes upstream that it stands beside: its resources appear among those of this one, and for a"
            " policy they are of this upstream",
            pattern=NAME,
            mistake="it is not the name of an upstream",
            missing="required: the upstream that it stands beside",
        ),
    ]
    server: Annotated[str, Text("`https://host:port`; no path", missing="required: where it listens")]
    tls: Annotated[
        ClientTls,
        Section(
            "how it is trusted, with `ca` or `pins`, and what is presented to it. Left out, the certificate and the key"
            " are those of `apiPlugins`",
            ClientTls,
        ),
    ] = field(default=ClientTls())
    health: Annotated[
        str | None,
        Text(
            "a path that is asked whether it is well. Its discovery is asked in any case",
            pattern=PLAIN_PATH,
            mistake="it is not a plain path",
            hint="write it as in /readyz",
            unset="none",
        ),
    ] = None
    fields: Annotated[ConfigSection | None, RawFields] = field(default=None, compare=False, repr=False)

    @property
    def name(self) -> str:
        return f"{self.upstream}.{self.group}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiPluginSettings:
    """The settings ``apiPlugins``."""

    SCHEMA: ClassVar[Mapping[str, object]] = {
        "dependentRequired": {"certificate": ["key"], "key": ["certificate"]},
    }

    certificate: Annotated[
        Path | None,
        FilePath(
            "the client certificate (PEM) that the gateway presents to plugins. Left out, none can be registered by"
            " API or command",
            holds=Holds.CERTIFICATES,
            unset="none",
        ),
    ] = None
    key: Annotated[KeyPlace | None, PrivateKey("its key", unset="none")] = None
    declared: Annotated[
        tuple[DeclaredApiPlugin, ...],
        Sections(
            "plugins of this file. Others are registered by API and command, where the token store keeps objects",
            DeclaredApiPlugin,
            "One plugin.",
        ),
    ] = ()

    def check(self, fields: ConfigSection) -> None:
        if (self.certificate is None) != (self.key is None) and fields.is_right("certificate", "key"):
            fields.problem("set both the certificate and its key", "certificate" if self.key is None else "key")
        if self.certificate is not None and self.key is not None and (mistake := bad_pair(self.certificate, self.key)):
            fields.problem(mistake, "certificate")
