"""The settings of the identity provider ``sso_cookie``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

from ostiary_gateway.providers.oidc.settings import EMPTY_NAME, IssuerSettings
from ostiary_gateway.settings.kinds import FilePath, Text, Texts

_NO_COOKIE = "it is missing, or not the name of a cookie"


@dataclass(frozen=True, slots=True, kw_only=True)
class SsoCookieSettings(IssuerSettings):
    """The settings of the identity provider ``sso_cookie``."""

    SCHEMA: ClassVar[Mapping[str, object]] = {"not": {"required": ["keysURL", "keysFile"]}}

    cookie: Annotated[
        str,
        Text(
            "the name of the cookie",
            pattern=r"[!#$%&'*+.^_`|~0-9A-Za-z-]+",
            mistake=_NO_COOKIE,
            empty=_NO_COOKIE,
            missing=_NO_COOKIE,
        ),
    ]
    audiences: Annotated[
        tuple[str, ...],
        Texts(
            "whom the tokens are for",
            least=1,
            empty=EMPTY_NAME,
            missing="it is missing: the audience of these tokens",
            missing_hint="without it, a token for any application would be accepted here",
        ),
    ]
    keys_url: Annotated[
        str, Text("where the issuer's keys are", name="keysURL", empty="", unset="what its discovery document says")
    ] = ""
    keys_file: Annotated[
        Path | None,
        FilePath("a file with the issuer's keys, in place of `keysURL`", checked=False, empty="", unset="none"),
    ] = None
