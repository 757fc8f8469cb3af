"""Providers with their names in the configuration: built, but not opened."""

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
    """A provider with its name. `fields` are its settings in the file, to compare two loads."""

    name: str
    type: str
    instance: T_co
    place: Place = field(default=Place(), compare=False)
    fields: ConfigSection | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Identity(Provider[IdentityProvider]):
    """An identity provider. `prefix` goes before its usernames, so that no two providers have the same one.

    `display_name` replaces the name on buttons and pages. `icon` is a bundled icon, `image` a custom one as a ``data:``
    URL.
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
    """A group provider. `prefix` goes before its groups. It serves the users of `identities`; if empty, all users.

    `own`: it is the object of its only identity provider, and sees usernames without the prefix.
    """

    prefix: str = ""
    identities: tuple[str, ...] = ()
    own: bool = False


class OnError(Enum):
    """Meaning of a provider's failure for the chain."""

    DENY = "Deny"
    NO_OPINION = "NoOpinion"


@dataclass(frozen=True, slots=True)
class Authorization(Provider[AuthorizationProvider]):
    """A link of the chain, for *upstreams* or, if None, for all. `shared`: the file sets ``upstreams`` explicitly."""

    on_error: OnError = OnError.DENY
    upstreams: frozenset[str] | None = None
    shared: bool = False
