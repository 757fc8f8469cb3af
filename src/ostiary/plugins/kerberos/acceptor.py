"""Has the Kerberos library judge a ticket, with the keytab of this provider and nothing of the process's environment.

Called by the identity provider. The library blocks, so this runs in a few threads. A key or a ticket cache of anybody
else's is never used: keytab and replay cache are given with the credential. The replay cache of the library is off,
because it knows this machine only: the gateway remembers each authenticator in its token store, for all replicas.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import gssapi
from gssapi.raw import (
    ChannelBindings,
    RequirementFlag,
    accept_sec_context,
    display_name,
    set_neg_mechs,
)
from gssapi.raw.exceptions import BadChannelBindingsError
from gssapi.raw.misc import GSSError
from gssapi.raw.named_tuples import AcceptSecContextResult

from ostiary.errors import ConfigurationError, LoginRefused, ProviderError
from ostiary.plugins.kerberos.failures import refusal_of, text_of
from ostiary.plugins.kerberos.keytab import KeytabEntry
from ostiary.plugins.kerberos.negotiate import SentTicket
from ostiary.plugins.kerberos.principals import Principal, parse_principal

SPNEGO = gssapi.OID.from_int_seq("1.3.6.1.5.5.2")
KRB5 = gssapi.OID.from_int_seq("1.2.840.113554.1.2.2")


@dataclass(frozen=True, slots=True)
class Accepted:
    """Whose ticket it is, and whether it is bound to this connection. `reply` proves to the client who we are."""

    principal: Principal
    is_bound: bool
    reply: bytes = field(repr=False)


class Acceptor:
    """*services* are the principals that tickets may be for; *entries* gives what the keytab has at this moment."""

    def __init__(
        self, keytab: str, services: Callable[[], tuple[Principal, ...]], entries: Callable[[], tuple[KeytabEntry, ...]]
    ) -> None:
        self._keytab = keytab
        self._services = services
        self._entries = entries

    def accept(self, ticket: SentTicket, binding: bytes | None) -> Accepted:
        """Raises `LoginRefused`, and `ProviderError` if the keytab cannot be used."""
        services = self._usable_services()
        if ticket.service not in services:
            ours = ", ".join(map(str, services)) or "none"
            raise LoginRefused(
                "your Kerberos ticket is for another service: use the URL of the gateway that its administrator gave"
                " you, and try again",
                cause=f"it is for {str(ticket.service)!a}, and the gateway is {ours}",
            )
        try:
            result = self._judge(ticket, ticket.token, binding)
        except BadChannelBindingsError:
            raise _bound_elsewhere() from None
        except GSSError as error:
            raise self._why_refused(error, ticket) from None
        return _accepted(result)

    def _usable_services(self) -> tuple[Principal, ...]:
        try:
            return self._services()
        except ConfigurationError as error:
            raise ProviderError("the keytab cannot be read", cause=error.cause, where=self._keytab) from None

    def _judge(self, ticket: SentTicket, token: bytes, binding: bytes | None) -> AcceptSecContextResult:
        """Raises `GSSError` if the library does not accept *token*."""
        name = gssapi.Name(str(ticket.service), gssapi.NameType.kerberos_principal)
        store: dict[str | bytes, str | bytes] = {"keytab": f"FILE:{self._keytab}", "rcache": "none:"}
        try:
            credential = gssapi.Credentials(name=name, usage="accept", store=store, mechs=[KRB5, SPNEGO])
            # Not NTLM, and not IAKERB, whatever mechanisms this machine has.
            set_neg_mechs(credential, [KRB5])
        except GSSError as error:
            # It had the key a moment ago, or the library cannot read what we could.
            cause = text_of(error)
            raise ProviderError("the keytab cannot be used", cause=cause, where=self._keytab) from None
        bindings = None if binding is None else ChannelBindings(application_data=binding)
        return accept_sec_context(token, credential, channel_bindings=bindings)

    def _why_refused(self, error: GSSError, ticket: SentTicket) -> LoginRefused:
        """SPNEGO gives its own numbers to errors: Kerberos alone tells which it is."""
        try:
            self._judge(ticket, ticket.mechanism_token, None)
        except GSSError as inner:
            error = inner
        versions = sorted({entry.key_version for entry in self._entries() if entry.service == ticket.service})
        return refusal_of(error, ticket, tuple(versions))


def _accepted(result: AcceptSecContextResult) -> Accepted:
    if result.more_steps or result.mech != KRB5:
        # A second leg, or a mechanism that came in by the negotiation.
        raise LoginRefused(
            "this program cannot sign in with Kerberos here: use another one, or another way to sign in",
            cause="the negotiation needs more than one request, or did not end with Kerberos",
        )
    # The library makes up no name, but for a ticket that is anonymous.
    principal = parse_principal(display_name(result.initiator_name).name.decode())
    if principal is None or int(result.flags) & RequirementFlag.anonymity:
        raise LoginRefused(
            "your Kerberos ticket has no name in it: get one with kinit", cause="the ticket is anonymous"
        )
    return Accepted(principal, bool(int(result.flags) & RequirementFlag.channel_bound), result.token or b"")


def _bound_elsewhere() -> LoginRefused:
    return LoginRefused(
        "your Kerberos ticket belongs to another connection: somebody may be in between, so tell the administrator of"
        " this gateway",
        cause="the channel binding is that of another certificate; where a proxy in front of the gateway ends TLS, set"
        " channelBinding: none",
    )
