"""The section ``stepUp`` of ``gateway.yaml``: which requests require stronger or more recent authentication.

`authorization.step_up` matches requests against the rules.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Annotated

from ostiary.core.yaml import ConfigSection
from ostiary_gateway.config.kinds import NAME
from ostiary_gateway.interfaces.identity import RequiredAuthentication
from ostiary_gateway.settings.kinds import Duration, Integer, Names, Text, Texts
from ostiary_gateway.settings.sections import Sections

# Valid acr and amr values: they are sent in a URL and a header, where a space separates values.
_VALUE = r"[!#-\[\]-~]+"
_NO_VALUE = "it is one word of ASCII, without quotes"


@dataclass(frozen=True, slots=True, kw_only=True)
class StepUpRuleSettings:
    """One rule. A request matches if every field that is set matches."""

    name: Annotated[
        str,
        Text(
            "small letters, digits and dashes; unique in the list. Whoever is asked reads it",
            pattern=NAME,
            mistake="it is not a name such as delete-in-production",
            missing="required: a name for the rule, which audit events tell",
        ),
    ]
    verbs: Annotated[tuple[str, ...], Names("as in a role: `[delete, deletecollection]`; `*` is all")] = ("*",)
    api_groups: Annotated[
        tuple[str, ...],
        Texts(
            "as in a role; an empty text is the core group, `*` is all",
            pattern=r"\*|[-a-z0-9.]*",
            mistake="it is not an API group",
        ),
    ] = ("*",)
    resources: Annotated[
        tuple[str, ...], Names("as in a role: `[secrets, pods/exec]`; `*` is all", unset="no resources")
    ] = ()
    resource_names: Annotated[
        tuple[str, ...],
        Names("these objects. A request for all of a kind (a list, say) falls under the rule, too", unset="all"),
    ] = ()
    namespaces: Annotated[
        tuple[str, ...],
        Names("these namespaces. A request across all namespaces falls under the rule, too", unset="all"),
    ] = ()
    paths: Annotated[
        tuple[str, ...],
        Names("paths that are no resource's, as `nonResourceURLs` of a role: `[/admin, /admin/*]`", unset="no paths"),
    ] = ()
    upstreams: Annotated[
        tuple[str, ...], Names("these upstreams; left out: all, and the gateway's own API", unset="all")
    ] = ()
    acr: Annotated[
        tuple[str, ...],
        Names(
            "the identity system must name one of these levels (`acr`). It is asked for them",
            pattern=_VALUE,
            mistake=_NO_VALUE,
            unset="any",
        ),
    ] = ()
    amr: Annotated[
        tuple[str, ...],
        Names(
            "the identity system must name one of these methods (`amr`): `[mfa]`. It cannot be asked for them by name,"
            " only to sign the person in anew",
            pattern=_VALUE,
            mistake=_NO_VALUE,
            unset="any",
        ),
    ] = ()
    max_age: Annotated[
        timedelta | None,
        Duration("how long ago the person may have proved who they are (`auth_time`), at most", unset="any time"),
    ] = None

    @property
    def required(self) -> RequiredAuthentication:
        return RequiredAuthentication(acr_values=self.acr, max_age=self.max_age, amr_values=self.amr)

    def check(self, fields: ConfigSection) -> None:
        if not self.resources and not self.paths and fields.is_right("resources", "paths"):
            fields.problem("no request falls under this rule", hint='name resources or paths, as in resources: ["*"]')
        if self.required == RequiredAuthentication() and fields.is_right("acr", "amr", "maxAge"):
            fields.problem("it requires nothing", hint="set acr, amr or maxAge")
        if not self.resources and (self.namespaces or self.resource_names) and fields.is_right("resources"):
            fields.problem("only resources have namespaces and names", "resources")


@dataclass(frozen=True, slots=True, kw_only=True)
class StepUpSettings:
    """The settings ``stepUp``."""

    hold: Annotated[
        timedelta,
        Duration(
            "how long a request of a person at a command line waits while they prove themselves; then 401. `0s`: 401 at"
            " once",
            zero=True,
        ),
    ] = timedelta(minutes=2)
    held_per_user: Annotated[int, Integer("waiting requests of one user, per worker; one more gets 401")] = 8
    held_in_all: Annotated[int, Integer("waiting requests of all users, per worker")] = 256
    rules: Annotated[
        tuple[StepUpRuleSettings, ...],
        Sections("all rules that a request falls under must be met", StepUpRuleSettings, "One rule."),
    ] = ()

    def check(self, fields: ConfigSection) -> None:
        names = [rule.name for rule in self.rules]
        if len(set(names)) < len(names) and fields.is_right("rules"):
            fields.problem("two rules have the same name", "rules")
