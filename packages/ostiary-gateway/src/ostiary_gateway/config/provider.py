"""Providers under their names in the configuration, ready built and not open yet."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Generic, TypeVar

from ostiary.core.yaml import ConfigSection
from ostiary.model import Place
from ostiary_gateway.interfaces.authorization import AuthorizationProvider
from ostiary_gateway.interfaces.group import GroupProvider
from ostiary_gateway.interfaces.identity import IdentityProvider

T_co = TypeVar("T_co", covariant=True)


@dataclass(frozen=True, slots=True)
class Provider(Generic[T_co]):
    """A provider under its name in the configuration. `fields` is what stands there, to compare two loads."""

    name: str
    type: str
    instance: T_co
    place: Place = field(default=Place(), compare=False)
    fields: ConfigSection | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Identity(Provider[IdentityProvider]):
    """`prefix` goes before each of its usernames, so that those of two providers are never the same.

    `display_name` is what people read on buttons and pages in place of the name. `icon` is a bundled icon, `image` one
    of the operator's own, as a ``data:`` address.
    """

    prefix: str = ""
    display_name: str = ""
    icon: str = ""
    image: str = field(default="", repr=False)

    @property
    def label(self) -> str:
        return self.display_name or self.name


@dataclass(frozen=True, slots=True)
class Groups(Provider[GroupProvider]):
    """`prefix` goes before each of its groups. `identities` are those whose users it is asked about; none: all.

    `own` tells that it is the object of its one identity provider: it sees usernames as that one gave them.
    """

    prefix: str = ""
    identities: tuple[str, ...] = ()
    own: bool = False


class OnError(Enum):
    """What a provider's failure means to the chain."""

    DENY = "Deny"
    NO_OPINION = "NoOpinion"


@dataclass(frozen=True, slots=True)
class Authorization(Provider[AuthorizationProvider]):
    """`upstreams` are those that its policy is for; None for all. `shared` tells that "all" is what somebody wrote."""

    on_error: OnError = OnError.DENY
    upstreams: frozenset[str] | None = None
    shared: bool = False
