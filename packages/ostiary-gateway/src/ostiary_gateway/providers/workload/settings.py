"""The settings of the identity provider ``workload``. `workload.identity` checks which of them go together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Annotated

from ostiary.core.yaml import ConfigSection, Json
from ostiary_gateway.providers.common.jwt_settings import ALGORITHMS, CLOCK_SKEW, Algorithms, ClockSkew
from ostiary_gateway.providers.oidc.claims import ExtraClaims
from ostiary_gateway.providers.workload.patterns import Pattern, Template, check_pattern, parse_template
from ostiary_gateway.settings.declare import RawFields
from ostiary_gateway.settings.kinds import Duration, FilePath, Flag, Holds, SettingKind, Text, Texts, Word
from ostiary_gateway.settings.sections import Sections

PLATFORMS = ("kubernetes", "github", "gitlab", "oidc", "spiffe")
EMPTY_NAME = "it contains an empty string"


@dataclass(frozen=True)
class Claims(SettingKind[Mapping[str, tuple[Pattern, ...]]]):
    """A mapping from claims to one pattern or a list of them."""

    @property
    def label(self) -> str:
        return "mapping"

    def read(self, fields: ConfigSection, key: str, directory: Path) -> Mapping[str, tuple[Pattern, ...]] | None:
        section = fields.section(key)
        return {claim: self._patterns(section, claim) for claim in section}

    def _patterns(self, section: ConfigSection, claim: str) -> tuple[Pattern, ...]:
        is_list = isinstance(section.plain(claim), list)
        texts = section.strings(claim) if is_list else (section.string(claim),)
        if not texts:
            section.problem("it matches nobody: the list is empty", claim)
        for text in texts:
            if mistake := check_pattern(text):
                section.problem(mistake, claim)
        return tuple(Pattern(text) for text in texts)

    def schema(self) -> dict[str, Json]:
        text: dict[str, Json] = {"type": "string", "minLength": 1}
        return {"type": "object", "additionalProperties": {"anyOf": [text, {"type": "array", "items": text}]}}

    def blank(self) -> Mapping[str, tuple[Pattern, ...]]:
        return {}

    def write(self, value: Mapping[str, tuple[Pattern, ...]]) -> Json:
        return {claim: [pattern.text for pattern in patterns] for claim, patterns in value.items()}


@dataclass(frozen=True)
class TemplateText(SettingKind[Template | None]):
    """One template, as a string."""

    @property
    def label(self) -> str:
        return "text"

    def read(self, fields: ConfigSection, key: str, directory: Path) -> Template | None:
        text = fields.optional_string(key)
        return None if text is None else _template(text, fields, key)

    def schema(self) -> dict[str, Json]:
        return {"type": "string", "minLength": 1}

    def blank(self) -> Template | None:
        return None

    def write(self, value: Template | None) -> Json:
        return None if value is None else value.text


@dataclass(frozen=True)
class TemplateTexts(SettingKind[tuple[Template, ...]]):
    """A list of templates."""

    @property
    def label(self) -> str:
        return "list"

    def read(self, fields: ConfigSection, key: str, directory: Path) -> tuple[Template, ...] | None:
        templates = (_template(text, fields, key) for text in fields.strings(key))
        return tuple(template for template in templates if template is not None)

    def schema(self) -> dict[str, Json]:
        return {"type": "array", "items": {"type": "string", "minLength": 1}}

    def blank(self) -> tuple[Template, ...]:
        return ()

    def write(self, value: tuple[Template, ...]) -> Json:
        return [template.text for template in value]


def _template(text: str, fields: ConfigSection, key: str) -> Template | None:
    try:
        return parse_template(text)
    except ValueError as mistake:
        fields.problem(str(mistake), key)
        return None


@dataclass(frozen=True, slots=True)
class RuleSettings:
    """One entry of ``rules``: which claims it matches, and the user that results."""

    fields: Annotated[ConfigSection, RawFields] = field(compare=False, repr=False)
    match: Annotated[
        Mapping[str, tuple[Pattern, ...]],
        Claims("claims, each with the values that it may have: `*` is one part of it, `**` any text"),
    ]
    username: Annotated[
        Template | None,
        TemplateText("the username, with claims in braces: `ci:{repository}`", unset="the platform's own name"),
    ] = None
    groups: Annotated[
        tuple[Template, ...],
        TemplateTexts("its groups, with claims in braces; of a claim that is a list, one for each value"),
    ] = ()
    uid: Annotated[Template | None, TemplateText("the uid, with claims in braces", unset="none")] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadSettings:
    """The settings of the identity provider ``workload``."""

    platform: Annotated[str, Word("whose tokens these are", PLATFORMS, missing="it is missing: whose tokens these are")]
    issuer: Annotated[
        str,
        Text(
            "the URL of the issuer, as its tokens have it; for `oidc` it is required",
            empty="",
            unset="that of GitHub, of gitlab.com, of a cluster; none for `spiffe`",
        ),
    ] = ""
    audiences: Annotated[
        tuple[str, ...],
        Texts(
            "whom a token must be for, and nobody else",
            empty=EMPTY_NAME,
            empty_list="it is empty: nobody could sign in",
            unset="`externalURL`",
        ),
    ] = ()
    rules: Annotated[
        tuple[RuleSettings, ...],
        Sections(
            "who may sign in, and as whom: the first rule that matches counts; optional for `kubernetes` and `spiffe`",
            RuleSettings,
            "claims to match, and the name of who has them",
        ),
    ] = ()
    server: Annotated[
        str,
        Text(
            "`kubernetes`: the URL of the API server that has the cluster's keys", empty="", unset="at the issuer's URL"
        ),
    ] = ""
    token_file: Annotated[
        Path | None,
        FilePath(
            "`kubernetes`: the file with the token that is sent to the API server",
            holds=Holds.SECRET,
            checked=False,
            unset="none",
        ),
    ] = None
    token_review: Annotated[
        bool, Flag("`kubernetes`: whether the API server is asked about each token (TokenReview), in place of its keys")
    ] = False
    cluster: Annotated[
        str,
        Text(
            "`kubernetes`: the upstream whose service accounts these are; they have Kubernetes' own names then",
            empty="",
            unset="none: their names are `serviceaccount:NAMESPACE:NAME`",
        ),
    ] = ""
    trust_domain: Annotated[str, Text("`spiffe`: the trust domain; required there", empty="", unset="none")] = ""
    keys_url: Annotated[
        str,
        Text(
            "where the keys are (a JWK Set); for `spiffe` the bundle endpoint",
            name="keysURL",
            empty="",
            unset="where the issuer says",
        ),
    ] = ""
    keys_file: Annotated[
        Path | None,
        FilePath(
            "a file with the keys (a JWK Set); for `spiffe` the trust bundle",
            checked=False,
            unset="none",
        ),
    ] = None
    ca: Annotated[
        Path | None,
        FilePath(
            "authorities (PEM) of the issuer, or of the API server",
            holds=Holds.CERTIFICATES,
            checked=False,
            empty="",
            unset="the system's",
        ),
    ] = None
    algorithms: Annotated[frozenset[str], Algorithms("the signatures that are believed", unset="all that are safe")] = (
        frozenset(ALGORITHMS)
    )
    clock_skew: Annotated[timedelta, ClockSkew("how far the clocks may differ; `5m` at most")] = CLOCK_SKEW
    max_age: Annotated[
        timedelta | None, Duration("how long after its issue a token is accepted", unset="until it expires")
    ] = None
    once: Annotated[bool, Flag("whether each token is accepted once only, by all replicas together")] = False
    lifetime: Annotated[
        timedelta | None,
        Duration(
            "how long the gateway's tokens are good; at most `tokens.lifetime`",
            unset="as long as the token that was presented",
        ),
    ] = None
    extra: Annotated[
        tuple[tuple[str, str], ...], ExtraClaims("keys of one's own domain, each with its claim", unset="none")
    ] = ()
    credential_id: Annotated[
        bool, Flag("whether the user's extra fields have the id of the token (`jti`)", name="credentialID")
    ] = True
