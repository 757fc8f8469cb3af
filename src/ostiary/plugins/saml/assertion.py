"""What an assertion says about a person, once it is believed. Imports no library."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

TRANSIENT = "urn:oasis:names:tc:SAML:2.0:nameid-format:transient"


@dataclass(frozen=True, slots=True)
class NameId:
    """How the identity system calls the person. The qualifiers belong to the name when it is sent back at a logout."""

    value: str
    format: str = ""
    name_qualifier: str = ""
    sp_name_qualifier: str = ""


@dataclass(frozen=True, slots=True)
class Assertion:
    """`good_until` is when everybody refuses it: until then its `id` must be remembered."""

    id: str
    name_id: NameId
    attributes: Mapping[str, tuple[str | None, ...]] = field(repr=False)
    good_until: datetime
    session_index: str = ""
    authenticated_at: datetime | None = None
    context_class: str = ""
    session_until: datetime | None = None
