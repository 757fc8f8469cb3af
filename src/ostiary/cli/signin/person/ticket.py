"""Signs in with the Kerberos ticket that the person has already: no browser, no prompt.

Called by `ways`, for a gateway that has an identity provider of the kind ``negotiate``. Needs the extra ``kerberos``.
The ticket goes to the gateway itself, over TLS, bound to its certificate; no rights are delegated to the gateway, and
it must prove in turn that it has the service's key.
"""

from __future__ import annotations

import binascii
from base64 import b64decode, b64encode
from contextlib import suppress
from importlib.util import find_spec
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from ostiary.cli.signin.gateway import GatewayClient
from ostiary.cli.signin.sessions import SignInGrant
from ostiary.core.net.channel_binding import server_end_point
from ostiary.core.text import printable
from ostiary.errors import CredentialError, LoginRefused, OstiaryError

if TYPE_CHECKING:
    from gssapi import OID, Credentials

KIND = "negotiate"
_SPNEGO, _KRB5 = "1.3.6.1.5.5.2", "1.2.840.113554.1.2.2"
_SCHEME = "Negotiate "


def has_library() -> bool:
    """Whether tickets can be used here at all. The library is not loaded."""
    return find_spec("gssapi") is not None


def has_ticket() -> bool:
    """Whether the person has a ticket that has not expired, or a keytab to get one with. No KDC is asked."""
    if not has_library():
        return False
    from gssapi.raw.misc import GSSError

    try:
        lifetime = _own_credential().lifetime
    except GSSError:
        return False
    return lifetime is None or lifetime > 0


def by_ticket(gateway: GatewayClient, provider: str) -> SignInGrant:
    """Raises `CredentialError` if there is no ticket, or it is not accepted."""
    if not has_ticket():
        raise _no_ticket("there is no Kerberos ticket, or it has expired")
    proof = TicketProof(gateway)
    try:
        grant, answer = gateway.sign_in_by_ticket(provider, proof.header())
    except LoginRefused as refusal:
        raise _no_ticket(refusal.cause or refusal.summary) from None
    if not proof.accepts(answer):
        # A session that nobody uses must not live on at the gateway.
        with suppress(OstiaryError):
            gateway.logout(grant.renewal, everywhere=False)
        raise _no_ticket("the gateway did not prove that it has the key of its service principal")
    return grant


class TicketProof:
    """One proof for one request, and the check of what the gateway answers to it."""

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
            # Nothing else: above all, no delegation.
            flags=int(RequirementFlag.mutual_authentication),
            usage="initiate",
            channel_bindings=None if binding is None else ChannelBindings(application_data=binding),
        )

    def header(self) -> str:
        """Raises `CredentialError` if the KDC gives no ticket for the gateway."""
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
            # Where the step failed, this raises what it failed with.
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
