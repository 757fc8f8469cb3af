"""The identity provider ``single_user``: every client on this machine is one user. The default without configuration.

identity: [{name: me, type: single_user, username: alice}]
"""

from __future__ import annotations

import getpass
from dataclasses import dataclass
from typing import Annotated
from urllib.parse import urlsplit

from ostiary.core.loopback import is_loopback, is_loopback_address
from ostiary.core.yaml import ConfigSection
from ostiary.errors import LoginRefused
from ostiary.model import UserInfo
from ostiary_gateway.catalog import Context
from ostiary_gateway.interfaces.identity import LoginRequest, Produces, SignIn
from ostiary_gateway.settings.declare import read_settings
from ostiary_gateway.settings.kinds import Text


@dataclass(frozen=True, slots=True)
class SingleUserSettings:
    username: Annotated[
        str | None,
        Text(
            "the name of the one user",
            unset="the user of the process",
            empty_hint="leave it out to be the user of the process",
        ),
    ] = None


_OF_PROXIES = frozenset(("forwarded", "via", "x-forwarded-for", "x-real-ip"))


class SingleUserIdentity:
    """Accept every client on the loopback interface as *username*, by default the user of this process."""

    sign_in = SignIn.AMBIENT
    proves_nothing = True

    def __init__(self, *, username: str | None = None) -> None:
        self._user = UserInfo(username or _os_user())
        self._is_named = username is not None

    @classmethod
    def from_config(cls, fields: ConfigSection, context: Context) -> SingleUserIdentity:
        return cls(username=read_settings(SingleUserSettings, fields, context.directory).username)

    def produces(self) -> Produces:
        # Without a username it is the user who runs the gateway, who may differ from the one who runs ``--check``.
        return Produces(frozenset((self._user.username,)) if self._is_named else None, uid=False)

    async def handle_client(self, request: LoginRequest) -> UserInfo:
        if not is_loopback_address(request.remote_address):
            raise LoginRefused(
                "this gateway accepts only clients on its own machine", cause="the client is not on the loopback"
            )
        # Requests through a proxy on this machine come from the loopback too, regardless of the client.
        if any(name in _OF_PROXIES for name, _ in request.headers):
            raise LoginRefused(
                "this gateway accepts only clients on its own machine", cause="the request came through a proxy"
            )
        # A web page may resolve its own host name to 127.0.0.1 and then read our responses (DNS rebinding).
        if not _is_our_name(_host(f"//{request.header('host') or ''}"), request.callback_url):
            raise LoginRefused("unknown host name for this gateway", cause="the Host header names another host")
        return self._user

    async def handle_provider(self, request: LoginRequest) -> UserInfo:
        raise LoginRefused(
            "there is no sign-in to continue: start again", cause="a single user is never sent elsewhere"
        )

    async def revalidate(self, user: UserInfo) -> UserInfo:
        if user.username != self._user.username:
            raise LoginRefused("the user of this gateway is another one now")
        return self._user


def _os_user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container may run as a numeric user without a name
        return "user"


def _is_our_name(host: str, callback_url: str) -> bool:
    return is_loopback(host) or (host != "" and host == _host(callback_url))


def _host(url: str) -> str:
    try:
        return urlsplit(url).hostname or ""
    except ValueError:
        return ""
