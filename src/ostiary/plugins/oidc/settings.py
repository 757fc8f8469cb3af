"""The settings that `oidc` and `sso_cookie` share: whom to believe, and by which rules."""

from __future__ import annotations

from datetime import timedelta

from ostiary.core.catalog import Context
from ostiary.core.config import Fields
from ostiary.errors import ConfigurationError
from ostiary.plugins.common.outbound import Outbound
from ostiary.plugins.oidc.issuer import usable_url
from ostiary.plugins.oidc.keys import ALGORITHMS
from ostiary.plugins.oidc.tokens import CLOCK_SKEW

# What errors call it.
SYSTEM = "the issuer"
MOST_SKEW = timedelta(minutes=5)


def read_issuer(fields: Fields) -> str:
    issuer = fields.string("issuer")
    if issuer == "":
        fields.problem("it is missing: the URL of the issuer", "issuer")
    elif (parts := usable_url(issuer, plain=True)) is None or parts.query:
        fields.problem("it is not a https URL without a query", "issuer", "plain http is for this machine only")
    return issuer


def read_outbound(fields: Fields, context: Context) -> Outbound:
    ca = fields.string("ca")
    try:
        return Outbound(SYSTEM, ca=context.path(ca) if ca else None)
    except ConfigurationError as error:
        fields.problem(error.cause or error.summary, "ca")
        # Never asked: with a problem noted, the gateway does not start.
        return Outbound(SYSTEM)


def read_algorithms(fields: Fields) -> frozenset[str]:
    names = fields.strings("algorithms")
    for name in names:
        if name not in ALGORITHMS:
            fields.problem("unknown or unsafe algorithm", "algorithms", f"there are: {_NAMES}")
    return frozenset(names) & ALGORITHMS.keys() or frozenset(ALGORITHMS)


_NAMES = ", ".join(ALGORITHMS)


def read_skew(fields: Fields) -> timedelta:
    skew = fields.optional_duration("clockSkew")
    if skew is None:
        return CLOCK_SKEW
    if not timedelta(0) <= skew <= MOST_SKEW:
        fields.problem("it must be between 0s and 5m", "clockSkew")
    return skew


def read_names(fields: Fields, key: str) -> tuple[str, ...]:
    """A list of texts, none of them empty: an empty one would fit what was left out by mistake."""
    names = fields.strings(key)
    if "" in names:
        fields.problem("it contains an empty string", key)
    return tuple(filter(None, names))
