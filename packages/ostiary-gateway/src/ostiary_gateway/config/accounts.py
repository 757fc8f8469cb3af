"""Settings for workloads in ``gateway.yaml``: service accounts, and named API tokens."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from typing import Annotated

from ostiary.core.account_names import NAME_PATTERN, NAMESPACE_PATTERN, AccountName
from ostiary.core.yaml import ConfigSection
from ostiary_gateway.settings.declare import RawFields
from ostiary_gateway.settings.kinds import Duration, Flag, Text
from ostiary_gateway.settings.sections import Sections

_NO_NAMESPACE = "it is not the name of a namespace: small letters, digits and dashes"
_NO_NAME = "it is not the name of a service account: small letters, digits, dashes and dots"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeclaredAccount:
    namespace: Annotated[str, Text("its namespace", pattern=NAMESPACE_PATTERN, mistake=_NO_NAMESPACE)]
    name: Annotated[str, Text("its name; unique in its namespace", pattern=NAME_PATTERN, mistake=_NO_NAME)]
    description: Annotated[str, Text("what it is for, shown in lists", unset="none")] = ""
    disabled: Annotated[bool, Flag("whether it gets no tokens, and those it has are revoked")] = False
    fields: Annotated[ConfigSection | None, RawFields] = field(default=None, compare=False, repr=False)

    @property
    def account_name(self) -> AccountName:
        return AccountName(self.namespace, self.name)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceAccountSettings:
    """The settings ``serviceAccounts``."""

    lifetime: Annotated[timedelta, Duration("of an account's token, if none is asked for")] = timedelta(hours=1)
    longest_lifetime: Annotated[
        timedelta, Duration("the longest that can be asked for; more is an error, and is not shortened")
    ] = timedelta(hours=24)
    declared: Annotated[
        tuple[DeclaredAccount, ...],
        Sections(
            "accounts of this file. Others are made by API and command, where the token store keeps objects. An account"
            " that is taken out of the list loses its tokens when the file is reloaded",
            DeclaredAccount,
            "One account.",
        ),
    ] = ()

    def check(self, fields: ConfigSection) -> None:
        if self.lifetime > self.longest_lifetime and fields.is_right("lifetime", "longestLifetime"):
            fields.problem(
                "it is longer than longestLifetime", "lifetime", "make serviceAccounts.longestLifetime longer"
            )
        names: set[AccountName] = set()
        for account in self.declared:
            if account.account_name in names and account.fields is not None and account.fields.is_right("name"):
                account.fields.problem("duplicate name in this namespace", "name")
            names.add(account.account_name)


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiTokenSettings:
    """The settings ``apiTokens``."""

    enabled: Annotated[
        bool,
        Flag(
            "whether there are API tokens: named, long-lived, for programs. Who may have them is then the policy's to"
            " say: *create*, *list* and *delete* of `apitokens` in the API group `ostiary.dev`"
        ),
    ] = False
    lifetime: Annotated[timedelta, Duration("of an API token, if none is asked for")] = timedelta(days=30)
    longest_lifetime: Annotated[
        timedelta, Duration("the longest that can be asked for; more is an error, and is not shortened")
    ] = timedelta(days=90)
    unchecked_lifetime: Annotated[
        timedelta,
        Duration(
            "the longest where nobody can be asked whether the owner is still somebody: `oidc`, `sso_cookie`,"
            " `client_certificate`, `trusted_header`, and providers of others without `revalidate`. All other owners"
            " and their groups are checked again every `tokens.lifetime` while the token is used"
        ),
    ] = timedelta(days=7)

    def check(self, fields: ConfigSection) -> None:
        if self.lifetime > self.longest_lifetime and fields.is_right("lifetime", "longestLifetime"):
            fields.problem("it is longer than longestLifetime", "lifetime", "make apiTokens.longestLifetime longer")
