"""The settings of the group provider ``google``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from ostiary.core.config import Fields
from ostiary.core.settings.kinds import AnyText, FilePath, Flag, Holds, Text, Texts, Word

APIS = ("cloudIdentity", "directory")
EMPTY_LIST = "an empty list restricts nothing: remove it if that is intended"
BAD_ENDPOINT = "it must be a https URL"
BAD_API = f"it must be {' or '.join(APIS)}"


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
