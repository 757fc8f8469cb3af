"""The settings of the identity provider ``oidc``, and those shared with ``sso_cookie`` and the presets."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Annotated, TypeAlias

from ostiary_gateway.providers.common.jwt_settings import ALGORITHMS, CLOCK_SKEW, Algorithms, ClockSkew
from ostiary_gateway.providers.common.refresh import Renewal, RenewalSetting
from ostiary_gateway.providers.oidc.claims import ClaimNames
from ostiary_gateway.settings.kinds import FilePath, Flag, Holds, Text, Texts, Word
from ostiary_gateway.settings.sections import Section

BASIC, POST = "client_secret_basic", "client_secret_post"
PROMPTS = ("consent", "login", "select_account")
QUERY, FORM_POST = "query", "form_post"
AUTO, ALWAYS, NEVER = "auto", "always", "never"
EMPTY_NAME = "it contains an empty string"

ClockSkewSetting: TypeAlias = Annotated[timedelta, ClockSkew("how far the clocks may differ; `5m` at most")]
CaSetting: TypeAlias = Annotated[
    Path | None,
    FilePath(
        "authorities (PEM) of the issuer", holds=Holds.CERTIFICATES, checked=False, empty="", unset="the system's"
    ),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class IssuerSettings:
    """The issuer to trust, and the rules for its tokens. `common.jwt_issuer.check_issuer` checks the URL."""

    issuer: Annotated[
        str,
        Text("the URL of the issuer, as it writes itself", empty="", missing="it is missing: the URL of the issuer"),
    ]
    claims: Annotated[ClaimNames, Section("which claim says what", ClaimNames)] = field(default=ClaimNames())
    algorithms: Annotated[frozenset[str], Algorithms("the signatures that are believed", unset="all that are safe")] = (
        frozenset(ALGORITHMS)
    )
    clock_skew: ClockSkewSetting = CLOCK_SKEW
    ca: CaSetting = None
    renewal: RenewalSetting = Renewal.DEFAULT


# No slots, because it is used as a second base: two bases with slots cannot be combined.
@dataclass(frozen=True, kw_only=True)
class ClientSettings:
    """The gateway's client registration at the issuer, and how browsers are sent there."""

    client_id: Annotated[
        str,
        Text(
            "what the gateway is called at the issuer",
            name="clientID",
            empty="",
            missing="it is missing: the name of this gateway at the issuer",
        ),
    ]
    client_secret_file: Annotated[
        Path | None,
        FilePath(
            "the file with the client's secret",
            holds=Holds.SECRET,
            checked=False,
            unset="none: a public client, which PKCE alone protects",
        ),
    ] = None
    response_mode: Annotated[
        str,
        Word(
            "how the issuer sends the browser back: with an address, or with a form that keeps the code out of"
            " addresses and logs",
            (QUERY, FORM_POST),
            mistake=f"it must be {QUERY} or {FORM_POST}",
            hint="",
            empty="",
        ),
    ] = QUERY
    pushed_authorization: Annotated[
        str,
        Word(
            "whether the request is sent to the issuer before the browser is (PAR, RFC 9126): `auto` where the issuer"
            " offers it",
            (AUTO, ALWAYS, NEVER),
            mistake=f"it must be {AUTO}, {ALWAYS} or {NEVER}",
            hint="",
            empty="",
        ),
    ] = AUTO
    prompt: Annotated[
        str,
        Word(
            "what the issuer shall ask the person; some give refresh tokens only after consent",
            PROMPTS,
            mistake=f"it must be {', '.join(PROMPTS[:-1])} or {PROMPTS[-1]}",
            hint="",
            empty="",
            unset="what the issuer likes",
        ),
    ] = ""
    end_session: Annotated[
        bool, Flag("whether signing out on the gateway's page also ends the session at the issuer")
    ] = False
    front_channel_logout: Annotated[
        bool,
        Flag("whether a page of the issuer may end a sign-in by its `sid`, in a frame; back-channel logout always may"),
    ] = False


def scopes(doc: str) -> Texts:
    return Texts(
        doc,
        empty=EMPTY_NAME,
        pattern=r"[!#-\[\]-~]+",
        mistake="a scope is one word of ASCII, without quotes",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class OidcSettings(IssuerSettings, ClientSettings):
    """The settings of the identity provider ``oidc``."""

    client_authentication: Annotated[
        str,
        Word(
            "for a client that is registered for the one way only",
            (BASIC, POST),
            mistake=f"it must be {BASIC} or {POST}",
            hint="",
            empty="",
            unset="what the issuer supports",
        ),
    ] = ""
    scopes: Annotated[tuple[str, ...], scopes("what to ask for, besides `openid`")] = ()
    audiences: Annotated[
        tuple[str, ...], Texts("audiences that may stand in an ID token beside the client", empty=EMPTY_NAME)
    ] = ()
    user_info: Annotated[bool, Flag("whether the claims come from the UserInfo endpoint")] = False


@dataclass(frozen=True, kw_only=True)
class NamedIssuerSettings(ClientSettings):
    """Settings that all presets share. The preset implies the others."""

    clock_skew: ClockSkewSetting = CLOCK_SKEW
    ca: CaSetting = None
    renewal: RenewalSetting = Renewal.DEFAULT


def refresh_tokens(doc: str) -> Flag:
    return Flag(f"whether to ask for refresh tokens, so that people are asked about at each renewal; {doc}")


def host(doc: str, *, missing: str) -> Text:
    return Text(
        doc,
        pattern=r"[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?(:[0-9]{1,5})?",
        mistake="it is not the name of a host",
        hint="without https:// and without a path",
        empty="",
        missing=missing,
    )


def username(doc: str, among: tuple[str, ...]) -> Word:
    mistake = f"it must be {', '.join(among[:-1])} or {among[-1]}"
    return Word(doc, among, mistake=mistake, hint="", empty="")
