"""Map the claims of an issuer to a `UserInfo`.

    claims: {username: email, uid: sub, groups: groups, extra: {example.com/team: team}}

Text is taken as it is. A missing claim denies the sign-in if it is the username, and is empty otherwise. A claim of the
wrong type fails the sign-in, since its meaning is unknown.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Protocol

from ostiary.core.yaml import ConfigSection, Json
from ostiary.errors import LoginRefused, ProviderError
from ostiary.model import UserInfo
from ostiary_gateway.interfaces.identity import Produces
from ostiary_gateway.settings.kinds import SettingKind, Text

EMAIL = "email"
MAX_USERNAME = 256
# Kubernetes requires keys of extra to be lower-case and prefixed with a domain.
EXTRA_KEY = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/[a-z0-9]([-_.a-z0-9/]{0,126}[a-z0-9])?")
# The gateway itself vouches for keys of ostiary.dev.
RESERVED = re.compile(r"(.*\.)?((kubernetes|k8s)\.io|ostiary\.dev)/.*")


class ReadsClaims(Protocol):
    """Maps claims to a user. Issuers with peculiarities have their own implementation."""

    def user(self, claims: Mapping[str, object], id_token: Mapping[str, object]) -> UserInfo:
        """Return the user that *claims* describe. *id_token* is empty at a refresh without one.

        Raise `LoginRefused` if the claims name no permitted user, and `ProviderError` if they cannot be read.
        """

    def produces(self) -> Produces: ...


def claim(what: str, *, unset: str = "") -> Text:
    return Text(f"the claim with {what}", empty="it names no claim", empty_hint="leave it out", unset=unset)


@dataclass(frozen=True)
class ExtraClaims(SettingKind[tuple[tuple[str, str], ...]]):
    """Keys of the user's extra fields, each with the claim that holds its values."""

    @property
    def label(self) -> str:
        return "mapping"

    def read(self, fields: ConfigSection, key: str, directory: Path) -> tuple[tuple[str, str], ...] | None:
        extra = fields.section(key)
        pairs = tuple((name, extra.string(name)) for name in extra)
        for name, claim in pairs:
            if not EXTRA_KEY.fullmatch(name) or RESERVED.fullmatch(name):
                mistake = "it is not a key such as example.com/team, in small letters and of one's own domain"
                extra.problem(mistake, name)
            if not claim:
                extra.problem("it names no claim", name)
        return pairs

    def schema(self) -> dict[str, Json]:
        return {"type": "object", "additionalProperties": {"type": "string", "minLength": 1}}

    def blank(self) -> tuple[tuple[str, str], ...]:
        return ()


@dataclass(frozen=True, slots=True)
class ClaimNames:
    """Names of the claims that hold the fields of a user.

    The default username is ``sub``, the only claim that an issuer never reassigns to another user.
    """

    username: Annotated[str, claim("the username")] = "sub"
    uid: Annotated[str, claim("the uid", unset="none")] = ""
    groups: Annotated[str, claim("the groups", unset="none")] = ""
    extra: Annotated[
        tuple[tuple[str, str], ...], ExtraClaims("keys of one's own domain, each with its claim", unset="none")
    ] = ()

    def user(self, claims: Mapping[str, object], id_token: Mapping[str, object] | None = None) -> UserInfo:
        """Return the user. Raise `LoginRefused` if the claims name no user, and `ProviderError` if they cannot be read.

        *id_token* is ignored, since *claims* may deliberately come from elsewhere.
        """
        return UserInfo(
            username=_username(self.username, claims),
            uid=text_of(self.uid, claims) if self.uid else "",
            groups=self._groups(claims),
            extra=tuple((key, values) for key, claim in sorted(self.extra) if (values := texts_of(claim, claims))),
        )

    def produces(self) -> Produces:
        return Produces(uid=bool(self.uid), extra=tuple(key for key, _ in sorted(self.extra)))

    def _groups(self, claims: Mapping[str, object]) -> tuple[str, ...]:
        elsewhere = claims.get("_claim_names")
        if self.groups and isinstance(elsewhere, dict) and self.groups in elsewhere:
            # Entra ID does this if there are too many groups. Without them the user would have the wrong rights.
            raise ProviderError(
                "the groups of this user are unknown",
                cause=f'the issuer leaves out the claim "{self.groups}", and has it elsewhere',
                hint="let the issuer send only the groups that are assigned to this application",
            )
        return tuple(dict.fromkeys(texts_of(self.groups, claims))) if self.groups else ()


def _username(claim: str, claims: Mapping[str, object]) -> str:
    try:
        username = text_of(claim, claims)
    except ProviderError:
        # For example a number. The issuer responds but sends no usable name: not an outage.
        username = ""
    if not is_username(username):
        raise LoginRefused("the issuer returned no usable user name", cause=f'the claim "{claim}" is not a user name')
    return username


def is_username(text: str) -> bool:
    """Return whether *text*, from an identity provider, is a valid username."""
    return 0 < len(text) <= MAX_USERNAME and text.isprintable() and text == text.strip()


def text_of(claim: str, claims: Mapping[str, object]) -> str:
    values = texts_of(claim, claims)
    if len(values) > 1:
        raise _unreadable(claim)
    return values[0] if values else ""


def texts_of(claim: str, claims: Mapping[str, object]) -> tuple[str, ...]:
    value = claims.get(claim)
    if value is None:
        return ()
    values = [item for item in (value if isinstance(value, list) else [value]) if isinstance(item, str)]
    if not isinstance(value, (list, str)) or (isinstance(value, list) and len(values) != len(value)):
        raise _unreadable(claim)
    if claim == EMAIL:
        _check_email(values, claims)
    return tuple(values)


def _check_email(values: list[str], claims: Mapping[str, object]) -> None:
    """Check that each address is verified and has one ``@``: with two, readers disagree about the domain."""
    if claims.get("email_verified") is not True:
        raise LoginRefused("your e-mail address is not verified", cause="email_verified is not true")
    for address in values:
        local, _, domain = address.partition("@")
        if not local or not domain or "@" in domain or not address.isprintable() or " " in address:
            raise LoginRefused("your e-mail address cannot be used", cause="it is not of the form name@domain")


def _unreadable(claim: str) -> ProviderError:
    return ProviderError(
        "the issuer's answer cannot be used", cause=f'the claim "{claim}" is neither a text nor a list of texts'
    )
