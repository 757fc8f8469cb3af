"""The settings of the identity provider ``trusted_header``."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

from ostiary.core.config import Fields
from ostiary.core.settings.kinds import Text, Texts
from ostiary.core.settings.sections import Section
from ostiary.plugins.common.renewal import Renewal, RenewalSetting

USER, GROUP = "X-Remote-User", "X-Remote-Group"
# These mean something to everybody on the way, and may be anybody's.
_NOT_OURS = frozenset(("authorization", "cookie", "host", "connection", "forwarded", "x-forwarded-for", "content-type"))
_NO_HEADER = "it is not a header of letters, digits and dashes that only the proxy sets"


def _header(what: str, *, unset: str = "") -> Text:
    # No underscore: some servers take it for a dash, and then two headers are one.
    return Text(
        f"the header with {what}",
        pattern=r"[A-Za-z0-9]([-A-Za-z0-9]*[A-Za-z0-9])?",
        mistake=_NO_HEADER,
        empty=_NO_HEADER,
        unset=unset,
    )


@dataclass(frozen=True, slots=True)
class HeaderSettings:
    user: Annotated[str, _header("the username")] = USER
    group: Annotated[str, _header("a group; a line for each")] = GROUP
    uid: Annotated[str, _header("the uid", unset="none")] = ""

    def check(self, fields: Fields) -> None:
        for key, name in (("user", self.user), ("group", self.group), ("uid", self.uid)):
            if name.lower() in _NOT_OURS:
                fields.problem(_NO_HEADER, key)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrustedHeaderSettings:
    names: Annotated[
        tuple[str, ...],
        Texts(
            "the common names of the proxies' client certificates",
            least=1,
            empty="it contains an empty string",
            missing="it is missing: the common names of the proxies' client certificates",
        ),
    ]
    headers: Annotated[HeaderSettings, Section("the headers that the proxy sets", HeaderSettings)] = field(
        default=HeaderSettings()
    )
    renewal: RenewalSetting = Renewal.DEFAULT

    def check(self, fields: Fields) -> None:
        names = [name.lower() for name in (self.headers.user, self.headers.group, self.headers.uid) if name]
        if len(set(names)) != len(names):
            fields.problem("one header cannot be used for two fields", "headers")
