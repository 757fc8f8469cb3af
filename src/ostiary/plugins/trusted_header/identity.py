"""A proxy in front authenticates users and names them in headers, which are believed from the listed proxies only.

    identity: [{name: sso, type: trusted_header, names: [front-proxy]}]
    groups: [{name: teams, provider: sso}]

A proxy proves itself by a client certificate with one of these common names, which the listener has verified against
``listen.tls.clientCA``. No address makes anybody a proxy: addresses can be shared, and headers can be written by all.
"""

from __future__ import annotations

from collections.abc import Iterable

from ostiary.core.catalog import Context
from ostiary.core.clock import SYSTEM_CLOCK, Clock
from ostiary.core.config import Fields
from ostiary.core.settings.declare import read_settings
from ostiary.errors import LoginRefused
from ostiary.interfaces.identity import LoginRequest, Produces, RenewalCheck, SignIn
from ostiary.model import UserInfo
from ostiary.plugins.claims.groups import ClaimedGroups
from ostiary.plugins.client_certificate.certificates import read_certificate
from ostiary.plugins.common.renewal import Renewal, sign_in_again
from ostiary.plugins.trusted_header.settings import GROUP, USER, TrustedHeaderSettings

_REFUSED = "only the trusted proxy may set the user"


class TrustedHeaderIdentity(ClaimedGroups):
    """Believes *user_header* and *group_header* (a line per group) of the proxies that are called one of *names*."""

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
    def from_config(cls, fields: Fields, context: Context) -> TrustedHeaderIdentity:
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
    """Every line of a header, each of them one value: a comma in it is part of a name."""
    try:
        # Headers arrive as bytes that happen to be shown as Latin-1.
        return [value.encode("latin-1").decode() for key, value in request.headers if key == name]
    except UnicodeError:
        raise LoginRefused("the proxy in front sends an unusable name", cause="a header is not UTF-8") from None


def _is_name(text: str) -> bool:
    return text != "" and text.isprintable() and text == text.strip()
