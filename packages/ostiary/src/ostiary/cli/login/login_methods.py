"""The sign-in methods and their selection: Kerberos ticket, browser, device code, password, or ambient credentials.

`login_lock` ensures that only one process of a user signs in at a time.
"""

from __future__ import annotations

import binascii
import getpass
import os
import platform
import sys
import time
import webbrowser
from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from importlib.util import find_spec
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import urlsplit

from ostiary.cli.cached_token import DEFAULT_ACCOUNT
from ostiary.cli.login import browser
from ostiary.cli.login.gateway import Device, GatewayClient, Method, sign_in_timeout
from ostiary.cli.login.sessions import GatewayAccount, SignInGrant
from ostiary.cli.login.terminal import Person, Wishes
from ostiary.core.channel_binding import server_end_point
from ostiary.core.text import printable
from ostiary.errors import ConfigurationError, CredentialError, LoginRefused, OstiaryError
from ostiary.model import Secret

if TYPE_CHECKING:
    from gssapi import OID, Credentials

# Kerberos: for a gateway with an identity provider of the kind ``negotiate``. Requires the extra ``kerberos``. The
# ticket is sent to the gateway over TLS, bound to its certificate. No rights are delegated to the gateway, and it must
# authenticate with the service's key (mutual authentication).

KIND = "negotiate"
_SPNEGO, _KRB5 = "1.3.6.1.5.5.2", "1.2.840.113554.1.2.2"
_SCHEME = "Negotiate "


def has_library() -> bool:
    """Whether Kerberos is supported here. Does not import the library."""
    return find_spec("gssapi") is not None


def has_ticket() -> bool:
    """Whether the user has a valid ticket, or a keytab to get one. Does not contact a KDC."""
    if not has_library():
        return False
    from gssapi.raw.misc import GSSError

    try:
        lifetime = _own_credential().lifetime
    except GSSError:
        return False
    return lifetime is None or lifetime > 0


def by_ticket(gateway: GatewayClient, provider: str) -> SignInGrant:
    """Sign in with a ticket. Raises `CredentialError` if there is no ticket, or if it is rejected."""
    if not has_ticket():
        raise _no_ticket("there is no Kerberos ticket, or it has expired")
    proof = TicketProof(gateway)
    try:
        grant, answer = gateway.sign_in_by_ticket(provider, proof.header())
    except LoginRefused as refusal:
        raise _no_ticket(refusal.cause or refusal.summary) from None
    if not proof.accepts(answer):
        # End the session at the gateway, because it will not be used.
        with suppress(OstiaryError):
            gateway.logout(grant.renewal, everywhere=False)
        raise _no_ticket("the gateway did not prove that it has the key of its service principal")
    return grant


class TicketProof:
    """The ticket for one request, and the check of the gateway's response."""

    def __init__(self, gateway: GatewayClient) -> None:
        import gssapi
        from gssapi.raw import ChannelBindings, RequirementFlag

        certificate = gateway.certificate
        binding = None if certificate is None else server_end_point(certificate)
        host = urlsplit(gateway.server).hostname or ""
        self._context = gssapi.SecurityContext(
            name=gssapi.Name(f"HTTP@{host}", gssapi.NameType.hostbased_service),
            creds=_own_credential(),
            mech=_oid(_SPNEGO),
            # No other flags, in particular no delegation.
            flags=int(RequirementFlag.mutual_authentication),
            usage="initiate",
            channel_bindings=None if binding is None else ChannelBindings(application_data=binding),
        )

    def header(self) -> str:
        """Return the Authorization header. Raises `CredentialError` if the KDC issues no ticket for the gateway."""
        from gssapi.raw.misc import GSSError

        try:
            token = self._context.step()
        except GSSError as error:
            cause = printable(" ".join(error.gen_message().split()))[:300]
        else:
            return _SCHEME + b64encode(token or b"").decode()
        raise _no_ticket(cause)

    def accepts(self, www_authenticate: str) -> bool:
        from gssapi.raw.misc import GSSError

        if not www_authenticate.startswith(_SCHEME):
            return False
        try:
            self._context.step(b64decode(www_authenticate[len(_SCHEME) :], validate=True))
            # Raises if the step failed.
            return bool(self._context.complete)
        except (GSSError, binascii.Error, ValueError):
            return False


def _own_credential() -> Credentials:
    import gssapi

    return gssapi.Credentials(usage="initiate", mechs=[_oid(_KRB5), _oid(_SPNEGO)])


def _oid(text: str) -> OID:
    import gssapi

    return gssapi.OID.from_int_seq(text)


def _no_ticket(cause: str) -> CredentialError:
    return CredentialError(
        "sign-in with Kerberos is not possible",
        cause=cause,
        hint="get a ticket with kinit, then run the command again; or choose another way with --provider",
        code="sign-in-needed",
    )


T = TypeVar("T")

SLOWER_SECONDS = 5.0
ATTEMPTS = 3
LONGEST_CLIENT = 100


def sign_in(gateway: GatewayClient, account: GatewayAccount, person: Person, wishes: Wishes) -> SignInGrant:
    """Sign in with a method that the gateway and this machine support."""
    if wishes.device:
        return by_device(gateway, person, wishes.seconds)
    methods = gateway.methods()
    method = _method(methods, wishes.provider)
    if (grant := _by_ticket(gateway, methods, method)) is not None:
        return grant
    if method is not None and method.kind == "ambient":
        # The request itself may authenticate the user: by address, client certificate, or an authenticating proxy.
        grant = gateway.sign_in_directly(method.name)
        if grant is not None:
            return grant
    if method is not None and method.kind == "password" and person.present:
        return by_password(gateway, person, method.name, wishes.username or _usual_name(account))
    if not wishes.no_browser and not has_browser(os.environ):
        return by_device(gateway, person, wishes.seconds)
    return browser.sign_in(
        gateway,
        person,
        provider=None if method is None else method.name,
        client=client_name(),
        seconds=wishes.seconds,
        show=None if wishes.no_browser else webbrowser.open,
    )


def sign_in_unattended(gateway: GatewayClient, wishes: Wishes) -> SignInGrant | None:
    """Sign in with a Kerberos ticket, without prompting the user. None if that is not possible."""
    if wishes.device or not has_ticket():
        return None
    methods = gateway.methods()
    return _by_ticket(gateway, methods, _method(methods, wishes.provider))


def _by_ticket(gateway: GatewayClient, methods: Sequence[Method], method: Method | None) -> SignInGrant | None:
    """Sign in with a ticket at the selected provider, or at any that accepts tickets if none was selected.

    None if there is no such provider or no Kerberos support; a browser may still have a ticket.
    """
    if not has_library() or not gateway.server.startswith("https://"):
        return None
    if method is not None:
        return by_ticket(gateway, method.name) if method.kind == KIND else None
    offered = next((each for each in methods if each.kind == KIND), None)
    return None if offered is None or not has_ticket() else by_ticket(gateway, offered.name)


def has_browser(environ: Mapping[str, str], platform_name: str = sys.platform) -> bool:
    """Whether the user can see a browser that is opened here."""
    if environ.get("BROWSER"):
        return True
    if environ.get("SSH_CONNECTION") or environ.get("SSH_TTY"):
        return False
    return platform_name in ("darwin", "win32") or bool(environ.get("DISPLAY") or environ.get("WAYLAND_DISPLAY"))


def client_name() -> str:
    """Return the name of this client, shown to the user on the consent page and in the list of sessions."""
    return f"ostiary on {platform.node() or 'a computer'}"[:LONGEST_CLIENT]


def _method(methods: Sequence[Method], asked: str | None) -> Method | None:
    """Return the provider to use. None if the user selects one in the browser."""
    if asked is None:
        return methods[0] if len(methods) == 1 else None
    for method in methods:
        if method.name == asked:
            return method
    names = printable(", ".join(method.name for method in methods)) or "none"
    raise ConfigurationError(
        "unknown identity provider",
        cause=f"{asked!r} is not configured there; known: {names}",
        hint="sign in with one of these, or leave --provider out",
        code="usage",
    )


# --- password ---


def by_password(gateway: GatewayClient, person: Person, provider: str, username: str) -> SignInGrant:
    """Sign in with a password. *username* is the default; after an error, the name that was typed."""
    for attempt in range(1, ATTEMPTS + 1):
        username = person.ask(f"username at {gateway.server}", username)
        password = person.ask_secret("password")
        try:
            grant = gateway.sign_in_directly(provider, username=username, password=password)
        except LoginRefused as refusal:
            # Retry only typing errors, not if the response says to wait.
            if attempt == ATTEMPTS or refusal.hint:
                raise
            person.tell(refusal.cause or refusal.summary)
            continue
        if grant is not None:
            return grant
    raise sign_in_timeout("no password was accepted")


def _usual_name(account: GatewayAccount) -> str:
    if account.name != DEFAULT_ACCOUNT:
        return account.name
    try:
        return getpass.getuser()
    except (KeyError, OSError, ImportError):
        return ""


# --- step-up ---


def step_up(gateway: GatewayClient, person: Person, wishes: Wishes, ticket: Secret) -> None:
    """Complete the step-up of *ticket* with a method that this machine supports."""
    if wishes.device or (not wishes.no_browser and not has_browser(os.environ)):
        device = gateway.begin_device(client_name(), step_up=ticket.reveal())
        _wait_for_device(device, person, wishes.seconds, lambda: gateway.poll_device_step_up(device) or None)
        return
    show = None if wishes.no_browser else webbrowser.open
    browser.step_up(gateway, person, ticket=ticket, client=client_name(), seconds=wishes.seconds, show=show)


# --- device code ---


def by_device(gateway: GatewayClient, person: Person, seconds: float) -> SignInGrant:
    """Sign in with a short code that the user enters in any browser, on any machine."""
    device = gateway.begin_device(client_name())
    return _wait_for_device(device, person, seconds, lambda: gateway.poll_device(device))


def _wait_for_device(device: Device, person: Person, seconds: float, poll: Callable[[], T | str]) -> T:
    """Poll until the result is not a string, and return it. A string is the reason to wait."""
    person.tell(
        f"open {device.address} in any browser and enter the code\n\n    {device.user_code}\n\n"
        f"or open {device.complete_address}"
    )
    deadline = time.monotonic() + min(seconds, device.seconds)
    interval = device.interval
    while True:
        remaining = deadline - time.monotonic()
        if remaining <= 0:
            raise sign_in_timeout("the code was not entered in time")
        time.sleep(min(interval, remaining))
        reply = poll()
        if not isinstance(reply, str):
            return reply
        if reply == "slow_down":
            interval += SLOWER_SECONDS
