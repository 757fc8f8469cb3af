"""The settings of the identity provider and the group provider ``google``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from ostiary.core.config import Fields
from ostiary.core.settings.kinds import AnyText, FilePath, Flag, Holds, Text, Texts, Word
from ostiary.plugins.oidc.settings import NamedIssuerSettings, refresh_tokens

APIS = ("cloudIdentity", "directory")
EMPTY_LIST = "an empty list restricts nothing: remove it if that is intended"
BAD_ENDPOINT = "it must be a https URL"
BAD_API = f"it must be {' or '.join(APIS)}"


DOMAIN = r"[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?"


@dataclass(frozen=True, slots=True, kw_only=True)
class GoogleIdentitySettings(NamedIssuerSettings):
    hosted_domains: Annotated[
        tuple[str, ...],
        Texts(
            "only accounts of these Workspace domains are let in",
            pattern=DOMAIN,
            mistake="it is not a domain",
            empty="it is not a domain",
            empty_list="an empty list lets nobody in",
            unset="none: `anyAccount`",
        ),
    ] = ()
    any_account: Annotated[
        bool, Flag("everybody who has a Google account is let in, without `hostedDomains`: policy alone decides")
    ] = False
    refresh_tokens: Annotated[bool, refresh_tokens("Google then asks for consent at each sign-in")] = True

    def check(self, fields: Fields) -> None:
        if self.prompt == "login":
            fields.problem("Google does not know it", "prompt", "it knows consent and select_account")
        if not fields.is_right("hostedDomains", "anyAccount"):
            return
        if not self.hosted_domains and not self.any_account:
            message = "it is missing: the Workspace domains whose accounts are let in"
            hint = "anyAccount: true lets in everybody who has a Google account"
            fields.problem(message, "hostedDomains", hint)
        if self.hosted_domains and self.any_account:
            fields.problem("it contradicts hostedDomains", "anyAccount", "leave out one of them")


@dataclass(frozen=True, slots=True, kw_only=True)
class GoogleGroupSettings:
    key_file: Annotated[
        Path | None,
        FilePath(
            "the JSON key of a service account; this or `consent`",
            holds=Holds.SECRET,
            checked=False,
            empty="",
            unset="none",
        ),
    ] = None
    consent: Annotated[bool, Flag("people are asked at sign-in whether their groups may be read")] = False
    client_id: Annotated[
        str, Text("with `consent`: of the registered application", name="clientID", empty="", unset="none")
    ] = ""
    client_secret_file: Annotated[
        Path | None,
        FilePath("with `consent`: the file with its secret", holds=Holds.SECRET, checked=False, empty="", unset="none"),
    ] = None
    api: Annotated[str, Word("which API is asked", APIS, mistake=BAD_API, hint="", empty="")] = APIS[0]
    subject: Annotated[
        str, Text("the administrator as whom the service account asks; the directory needs one", empty="", unset="none")
    ] = ""
    domains: Annotated[
        tuple[str, ...] | None,
        Texts("groups of these domains only", empty_list=EMPTY_LIST, unset="every relevant group that is an address"),
    ] = None
    user_prefix: Annotated[
        str, AnyText("what the usernames begin with that are Google's; without it they are addresses", unset="none")
    ] = ""
    endpoint: Annotated[str | None, Text("another address of the API", empty=BAD_ENDPOINT, unset="Google's")] = None
    ca: Annotated[
        Path | None,
        FilePath(
            "authorities (PEM) of that address", holds=Holds.CERTIFICATES, checked=False, empty="", unset="the system's"
        ),
    ] = None

    def check(self, fields: Fields) -> None:
        if self.consent:
            if not self.client_id and fields.is_right("clientID"):
                fields.problem("it is missing: Google gives it to a registered application", "clientID")
            if self.client_secret_file is None and fields.is_right("clientSecretFile"):
                fields.problem("it is missing: the file with the application's secret", "clientSecretFile")
            return
        for name in ("clientID", "clientSecretFile"):
            if name in fields:
                fields.problem("it is used with consent: true only", name)
        if self.key_file is None and fields.is_right("keyFile"):
            fields.problem("it is missing: the JSON key of a service account", "keyFile", "or set consent: true")
        if self.api == "directory" and not self.subject and fields.is_right("subject"):
            fields.problem("it is missing: the administrator as whom the directory is asked", "subject")
