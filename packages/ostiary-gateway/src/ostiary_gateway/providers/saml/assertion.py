"""A validated assertion, and its mapping to a `UserInfo`. Imports no SAML library.

    attributes: {username: email, uid: employeeNumber, groups: memberOf, extra: {example.com/team: team}}

Attributes are identified by their Name; FriendlyName is ignored. Text is taken as it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Annotated

from ostiary.errors import LoginRefused, ProviderError
from ostiary.model import UserInfo
from ostiary_gateway.interfaces.identity import Produces
from ostiary_gateway.providers.oidc.claims import ExtraClaims, is_username
from ostiary_gateway.sessions.authentication_context import ACR, AUTH_TIME, AuthenticationContext, with_context
from ostiary_gateway.settings.kinds import Text

TRANSIENT = "urn:oasis:names:tc:SAML:2.0:nameid-format:transient"


@dataclass(frozen=True, slots=True)
class NameId:
    """The IdP's identifier of the user. A logout request must repeat the qualifiers."""

    value: str
    format: str = ""
    name_qualifier: str = ""
    sp_name_qualifier: str = ""


@dataclass(frozen=True, slots=True)
class Assertion:
    """A validated assertion. Until `good_until` its `id` is stored against replay; then it is rejected as expired."""

    id: str
    name_id: NameId
    attributes: Mapping[str, tuple[str | None, ...]] = field(repr=False)
    good_until: datetime
    session_index: str = ""
    authenticated_at: datetime | None = None
    context_class: str = ""
    session_until: datetime | None = None


# Mapping to a user.


def attribute_setting(what: str, *, unset: str) -> Text:
    return Text(
        f"the Name of the attribute with {what}", empty="it names no attribute", empty_hint="leave it out", unset=unset
    )


@dataclass(frozen=True, slots=True)
class AttributeNames:
    """Names of the SAML attributes that hold the username, uid, groups and extra fields.

    The default username is the NameID, unless it is transient: that changes at each sign-in.
    """

    username: Annotated[str, attribute_setting("the username", unset="the NameID")] = ""
    uid: Annotated[str, attribute_setting("the uid", unset="none")] = ""
    groups: Annotated[str, attribute_setting("the groups", unset="none")] = ""
    extra: Annotated[
        tuple[tuple[str, str], ...], ExtraClaims("keys of one's own domain, each with its attribute", unset="none")
    ] = ()

    def user(self, assertion: Assertion) -> UserInfo:
        """Return the user. Raise `LoginRefused` without a valid name, `ProviderError` if an attribute is unreadable."""
        attributes = assertion.attributes
        user = UserInfo(
            username=self._username(assertion),
            uid=_only(self.uid, attributes) if self.uid else "",
            groups=tuple(dict.fromkeys(_texts(self.groups, attributes))) if self.groups else (),
            extra=tuple((key, values) for key, name in sorted(self.extra) if (values := _texts(name, attributes))),
        )
        context = AuthenticationContext(acr=assertion.context_class, auth_time=assertion.authenticated_at)
        return with_context(user, context)

    def produces(self) -> Produces:
        keys = {key for key, _ in self.extra}
        return Produces(uid=bool(self.uid), extra=tuple(sorted({*keys, ACR, AUTH_TIME})))

    def _username(self, assertion: Assertion) -> str:
        if not self.username:
            name_id = assertion.name_id
            if name_id.format == TRANSIENT:
                cause = "the NameID is transient: set nameIDFormat, or name an attribute with attributes.username"
                raise LoginRefused(_NO_NAME, cause=cause)
            return _checked(name_id.value, "the NameID")
        values = assertion.attributes.get(self.username, ())
        name = values[0] if len(values) == 1 else None
        return _checked(name or "", f'the attribute "{self.username}"')


_NO_NAME = "the identity system returned no usable user name: ask the administrator of this gateway"


def _checked(text: str, source: str) -> str:
    if not is_username(text):
        raise LoginRefused(_NO_NAME, cause=f"{source} is missing, not a user name, or there are several")
    return text


def _only(name: str, attributes: Mapping[str, tuple[str | None, ...]]) -> str:
    values = _texts(name, attributes)
    if len(values) > 1:
        raise _unreadable(name, "has several values")
    return values[0] if values else ""


def _texts(name: str, attributes: Mapping[str, tuple[str | None, ...]]) -> tuple[str, ...]:
    values = attributes.get(name, ())
    texts = tuple(value for value in values if value is not None)
    if len(texts) != len(values):
        raise _unreadable(name, "has a value that is not a text")
    return texts


def _unreadable(name: str, why: str) -> ProviderError:
    return ProviderError("the assertion of the identity system cannot be used", cause=f'the attribute "{name}" {why}')
