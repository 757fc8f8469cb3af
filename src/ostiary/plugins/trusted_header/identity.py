"""A proxy in front has asked who it is, and says so in headers: believed from the proxies on the list, and nobody else.

    identity: [{name: sso, type: trusted_header, names: [front-proxy]}]
    groups: [{name: teams, provider: sso}]

A proxy proves itself by a client certificate with one of these common names, which the listener has verified against
``listen.tls.clientCA``. No address makes anybody a proxy: addresses can be shared, and headers can be written by all.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from ostiary.core.catalog import Context
from ostiary.core.clock import SYSTEM_CLOCK, Clock
from ostiary.core.config import Fields
from ostiary.errors import LoginRefused
from ostiary.interfaces.identity import LoginRequest, Produces, RenewalCheck, SignIn
from ostiary.model import UserInfo
from ostiary.plugins.claims.groups import ClaimedGroups
from ostiary.plugins.client_certificate.certificates import read_certificate
from ostiary.plugins.common.renewal import Renewal, read_renewal, sign_in_again
from ostiary.plugins.oidc.settings import read_names

USER, GROUP = "X-Remote-User", "X-Remote-Group"
_NAME = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9]*[A-Za-z0-9])?")
# These mean something to everybody on the way, and may be anybody's.
_NOT_OURS = frozenset(("authorization", "cookie", "host", "connection", "forwarded", "x-forwarded-for", "content-type"))
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
        names = read_names(fields, "names")
        if not names:
            fields.problem("it is missing: the common names of the proxies' client certificates", "names")
        headers = fields.section("headers")
        user, group, uid = (_header_name(headers, name) for name in ("user", "group", "uid"))
        chosen = [name.lower() for name in (user or USER, group or GROUP, uid) if name]
        if len(set(chosen)) != len(chosen):
            fields.problem("one header cannot be used for two fields", "headers")
        return cls(
            names=names,
            user_header=user or USER,
            group_header=group or GROUP,
            uid_header=uid,
            renewal=read_renewal(fields),
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


def _header_name(fields: Fields, key: str) -> str:
    name = fields.optional_string(key)
    if name is None:
        return ""
    # No underscore: some servers take it for a dash, and then two headers are one.
    if not _NAME.fullmatch(name) or name.lower() in _NOT_OURS:
        fields.problem("it is not a header of letters, digits and dashes that only the proxy sets", key)
        return ""
    return name


def _values(request: LoginRequest, name: str) -> list[str]:
    """Every line of a header, each of them one value: a comma in it is part of a name."""
    try:
        # Headers arrive as bytes that happen to be shown as Latin-1.
        return [value.encode("latin-1").decode() for key, value in request.headers if key == name]
    except UnicodeError:
        raise LoginRefused("the proxy in front sends an unusable name", cause="a header is not UTF-8") from None


def _is_name(text: str) -> bool:
    return text != "" and text.isprintable() and text == text.strip()
