"""The identity provider ``trusted_header``: a proxy in front authenticates users and names them in headers.

    identity: [{name: sso, type: trusted_header, names: [front-proxy]}]
    groups: [{name: teams, provider: sso}]

The proxy proves itself with a client certificate with one of these common names, verified by the listener against
``listen.tls.clientCA``. Addresses are not trusted: they can be shared, and any client can send the headers.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Annotated

from ostiary.core.clock import SYSTEM_CLOCK, Clock
from ostiary.core.yaml import ConfigSection
from ostiary.errors import LoginRefused
from ostiary.model import UserInfo
from ostiary_gateway.catalog import Context
from ostiary_gateway.interfaces.identity import LoginRequest, Produces, RenewalCheck, SignIn
from ostiary_gateway.providers.claims import ClaimedGroups
from ostiary_gateway.providers.client_certificate_reading import read_certificate
from ostiary_gateway.providers.common.refresh import Renewal, RenewalSetting, sign_in_again
from ostiary_gateway.settings.declare import read_settings
from ostiary_gateway.settings.kinds import Text, Texts
from ostiary_gateway.settings.sections import Section

USER, GROUP = "X-Remote-User", "X-Remote-Group"
# These have a meaning to other components, and clients may set them.
_NOT_OURS = frozenset(("authorization", "cookie", "host", "connection", "forwarded", "x-forwarded-for", "content-type"))
_NO_HEADER = "it is not a header of letters, digits and dashes that only the proxy sets"


def _header(what: str, *, unset: str = "") -> Text:
    # No underscore: some servers treat it as a dash, and then two headers are one.
    return Text(
        f"the header with {what}",
        pattern=r"[A-Za-z0-9]([-A-Za-z0-9]*[A-Za-z0-9])?",
        mistake=_NO_HEADER,
        empty=_NO_HEADER,
        unset=unset,
    )


@dataclass(frozen=True, slots=True)
class HeaderSettings:
    user: Annotated[str, _header("the username")] = USER
    group: Annotated[str, _header("a group; a line for each")] = GROUP
    uid: Annotated[str, _header("the uid", unset="none")] = ""

    def check(self, fields: ConfigSection) -> None:
        for key, name in (("user", self.user), ("group", self.group), ("uid", self.uid)):
            if name.lower() in _NOT_OURS:
                fields.problem(_NO_HEADER, key)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrustedHeaderSettings:
    """The settings of the identity provider ``trusted_header``."""

    names: Annotated[
        tuple[str, ...],
        Texts(
            "the common names of the proxies' client certificates",
            least=1,
            empty="it contains an empty string",
            missing="it is missing: the common names of the proxies' client certificates",
        ),
    ]
    headers: Annotated[HeaderSettings, Section("the headers that the proxy sets", HeaderSettings)] = field(
        default=HeaderSettings()
    )
    renewal: RenewalSetting = Renewal.DEFAULT

    def check(self, fields: ConfigSection) -> None:
        names = [name.lower() for name in (self.headers.user, self.headers.group, self.headers.uid) if name]
        if len(set(names)) != len(names):
            fields.problem("one header cannot be used for two fields", "headers")


_REFUSED = "only the trusted proxy may set the user"


class TrustedHeaderIdentity(ClaimedGroups):
    """Trust *user_header* and *group_header* (one line per group) from proxies whose certificate has one of *names*."""

    sign_in = SignIn.AMBIENT
    needs_client_certificate = True
    renewal_check: RenewalCheck

    def __init__(
        self,
        *,
        names: Iterable[str],
        user_header: str = USER,
        group_header: str = GROUP,
        uid_header: str = "",
        renewal: Renewal = Renewal.DEFAULT,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._names = frozenset(names) - {""}
        self._user, self._group, self._uid = (name.lower() for name in (user_header, group_header, uid_header))
        self._clock = clock
        self.renewal_check = renewal.check()
        if renewal is Renewal.SIGN_IN:
            self.revalidate = sign_in_again

    @classmethod
    def from_config(cls, fields: ConfigSection, context: Context) -> TrustedHeaderIdentity:
        settings = read_settings(TrustedHeaderSettings, fields, context.directory)
        return cls(
            names=settings.names,
            user_header=settings.headers.user,
            group_header=settings.headers.group,
            uid_header=settings.headers.uid,
            renewal=settings.renewal,
            clock=context.clock,
        )

    def produces(self) -> Produces:
        return Produces(uid=bool(self._uid))

    async def handle_client(self, request: LoginRequest) -> UserInfo:
        self._check_proxy(request)
        users = _values(request, self._user)
        if len(users) != 1 or not _is_name(users[0]):
            raise LoginRefused("the trusted proxy did not send a user name", cause="there is not one name in a header")
        uids = _values(request, self._uid) if self._uid else []
        if len(uids) > 1:
            raise LoginRefused("the trusted proxy did not send a user name", cause="there is more than one uid")
        groups = [group for group in _values(request, self._group) if group]
        return UserInfo(users[0], uid="".join(uids), groups=tuple(dict.fromkeys(groups)))

    async def handle_provider(self, request: LoginRequest) -> UserInfo:
        raise LoginRefused("there is no sign-in to continue: start again", cause="a proxy in front sends nobody to us")

    def _check_proxy(self, request: LoginRequest) -> None:
        if request.peer_certificate is None:
            raise LoginRefused(_REFUSED, cause="the connection has no client certificate")
        certificate = read_certificate(request.peer_certificate)
        if certificate is None or not certificate.is_valid(self._clock.now()):
            raise LoginRefused(_REFUSED, cause="the client certificate is not valid")
        if certificate.common_name not in self._names:
            raise LoginRefused(_REFUSED, cause="the client certificate is not one of a proxy on the list")


def _values(request: LoginRequest, name: str) -> list[str]:
    """Return the lines of a header, one value each: a comma is part of a name."""
    try:
        # Header bytes are decoded as Latin-1, but contain UTF-8.
        return [value.encode("latin-1").decode() for key, value in request.headers if key == name]
    except UnicodeError:
        raise LoginRefused("the proxy in front sends an unusable name", cause="a header is not UTF-8") from None


def _is_name(text: str) -> bool:
    return text != "" and text.isprintable() and text == text.strip()
