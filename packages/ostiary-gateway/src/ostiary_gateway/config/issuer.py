"""The settings ``issuer``: JWTs signed by the gateway, which clusters and other services verify themselves."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Annotated
from urllib.parse import SplitResult, urlsplit

from ostiary.core.loopback import is_loopback
from ostiary.core.yaml import ConfigSection
from ostiary.errors import OstiaryError
from ostiary.keys.address import KeyAddress
from ostiary_gateway.issuer.keys import LONGEST_LIFETIME, KeyLife
from ostiary_gateway.issuer.sealing_secrets import read_sealing_secrets
from ostiary_gateway.settings.kinds import Duration, FilePath, Holds, KeyPlace, Names, Parsed, PrivateKeys, unreadable
from ostiary_gateway.settings.outgoing import opens_keys
from ostiary_gateway.settings.sections import Section

SHORTEST_LIFETIME = timedelta(seconds=30)
# First path segments of built-in endpoints and of Kubernetes APIs.
TAKEN_PATHS = frozenset(("auth", "webhooks", "api", "apis"))


def parse_issuer_url(text: str) -> SplitResult:
    """Parse ``https://host:port/path``, the claim ``iss``. Raises `ValueError` with the error message."""
    if not text.isascii() or not text.isprintable() or " " in text or "\\" in text:
        raise ValueError("it contains characters that are not allowed in a URL")
    try:
        url = urlsplit(text)
        usable = url.scheme in ("http", "https") and url.hostname and url.port != 0
    except ValueError:
        usable = False
    if not usable or "@" in url.netloc:
        raise ValueError("it is not a URL of scheme, host, port and path")
    if "?" in text or "#" in text:
        raise ValueError("it must not contain a query or fragment")
    if url.path.endswith("/") or "//" in url.path or "%" in url.path or "/." in url.path:
        raise ValueError("its path must be plain, without a slash at the end")
    return url


@dataclass(frozen=True, slots=True)
class IssuerKeys:
    """Signing keys: either `secret_file` or `files`."""

    secret_file: Annotated[
        Path | None,
        FilePath(
            "keys are made, rotated and kept in the token store, sealed with the first line of this file: at least 32"
            " characters, from `openssl rand -hex 32`. Further lines are older secrets, which only open",
            holds=Holds.SECRET,
            unset="none",
        ),
    ] = None
    files: Annotated[
        tuple[KeyPlace, ...],
        PrivateKeys(
            "in place of `secretFile`: private keys on the curve P-256, in PEM, or kept elsewhere (`pkcs11:...`). The"
            " first one signs, all are published; rotating them is the operator's task"
        ),
    ] = ()
    sign_for: Annotated[
        timedelta,
        Duration(
            "how long a key of the token store signs; 30 minutes at least",
            least=timedelta(minutes=30),
            mistake="it must be at least 30 minutes",
        ),
    ] = timedelta(hours=24)
    publish_ahead: Annotated[
        timedelta,
        Duration(
            "how long the next key is published before it signs; a minute at least, and shorter than `signFor`",
            least=timedelta(minutes=1),
            mistake="it must be at least one minute",
        ),
    ] = timedelta(hours=1)

    @property
    def life(self) -> KeyLife:
        return KeyLife(self.sign_for, self.publish_ahead)

    def check(self, fields: ConfigSection) -> None:
        if (self.secret_file is None) == (not self.files) and fields.is_right("secretFile", "files"):
            hint = "openssl rand -hex 32 > issuer-secret, and keys: {secretFile: issuer-secret}"
            fields.problem("either secretFile or files must be set", None, hint)
        if self.publish_ahead >= self.sign_for and fields.is_right("publishAhead", "signFor"):
            fields.problem("it must be shorter than signFor", "publishAhead")
        if self.files and ("signFor" in fields or "publishAhead" in fields):
            fields.problem("keys in files are not rotated by the gateway", "signFor", "remove it")
        if self.secret_file is not None and not unreadable(self.secret_file):
            _note(fields, "secretFile", lambda: read_sealing_secrets(str(self.secret_file)))
        for place in self.files:
            if isinstance(place, Path):
                # Imported here: needed only with an issuer.
                from ostiary_gateway.issuer.key_files import read_key_file

                _note(fields, "files", lambda path=place: read_key_file(str(path)))
            else:
                _note(fields, "files", lambda address=place: _check_device_key(address))


def _check_device_key(address: KeyAddress) -> None:
    if opens_keys():
        from ostiary_gateway.issuer.key_files import read_device_key

        read_device_key(address)
        return
    # Imported here: needed only for external keys (PKCS#11, TPM).
    from ostiary.keys.opening import check_address

    check_address(address)


def _note(fields: ConfigSection, key: str, read: object) -> None:
    assert callable(read)
    try:
        read()
    except OstiaryError as error:
        fields.problem(f"{error.summary}: {error.cause}", key, error.hint)


@dataclass(frozen=True, slots=True)
class JwtIssuerSettings:
    """The settings ``issuer``."""

    audiences: Annotated[
        tuple[str, ...],
        Names(
            "whom JWTs may be for, as the claim `aud` names them: the audiences of each cluster that trusts this"
            " issuer. No JWT is signed for any other",
            least=1,
            missing="required: without it no JWT can be asked for",
        ),
    ]
    keys: Annotated[IssuerKeys, Section("what signs", IssuerKeys)] = field(default=IssuerKeys())
    url: Annotated[
        SplitResult | None,
        Parsed(
            "the claim `iss`. Below it are `/.well-known/openid-configuration` and the keys. With a path, these take"
            " its place at the gateway; without, the gateway answers all of `/.well-known` itself",
            parse_issuer_url,
            pattern="^https?://[^?#@ ]+[^/]$",
            hint="write it as in https://gateway.example.com/issuer",
            unset="`externalURL`",
            kind="URL",
        ),
    ] = None
    lifetime: Annotated[timedelta, Duration("of a JWT; 15 minutes at most, because verifiers ask nobody")] = timedelta(
        minutes=10
    )

    @property
    def path(self) -> str:
        """The path of `url`, empty if it has none."""
        return "" if self.url is None else self.url.path

    def check(self, fields: ConfigSection) -> None:
        if not SHORTEST_LIFETIME <= self.lifetime <= LONGEST_LIFETIME and fields.is_right("lifetime"):
            fields.problem("it must be from 30 seconds to 15 minutes", "lifetime")
        url = self.url
        if url is None or not fields.is_right("url"):
            return
        if url.scheme == "http" and not is_loopback(url.hostname or ""):
            fields.problem("keys from there could not be trusted", "url", "begin it with https://")
        if url.path.split("/")[1:2] and url.path.split("/")[1] in TAKEN_PATHS:
            fields.problem("this path has another meaning", "url", "write it as in https://gateway.example.com/issuer")
