"""Calls to the Kerberos library: accept tickets with the provider's keytab, and query the KDC about principals.

The library blocks, so callers use threads. Keytab, caches and replay cache are passed explicitly, so that keys and
ticket caches of the process environment are never used. The library's replay cache is off, because it covers only this
machine: the gateway stores each authenticator in its token store, for all replicas.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import gssapi
from gssapi.raw import (
    ChannelBindings,
    RequirementFlag,
    accept_sec_context,
    acquire_cred_impersonate_name,
    display_name,
    set_neg_mechs,
)
from gssapi.raw.exceptions import BadChannelBindingsError
from gssapi.raw.misc import GSSError
from gssapi.raw.named_tuples import AcceptSecContextResult

from ostiary.core.text import printable
from ostiary.errors import ConfigurationError, LoginRefused, ProviderError
from ostiary_gateway.providers.kerberos.keytab import KeytabEntry
from ostiary_gateway.providers.kerberos.negotiate import SentTicket
from ostiary_gateway.providers.kerberos.principals import Principal, parse_principal

# Errors of the library, as a sentence for the user and a cause for the operator. The numbers are those of ``krb5.h``;
# the texts are localized and differ between versions.

_BASE = -1765328384
# RFC 4120, section 7.5.9.
CLIENT_EXPIRED, CLIENT_UNKNOWN, CLIENT_REVOKED = 1, 6, 18
_BAD_INTEGRITY, _EXPIRED, _NOT_YET_VALID, _SKEW, _MODIFIED = 31, 32, 33, 37, 41
_BAD_KEY_VERSION, _NO_KEY = 44, 45
# Errors of the library itself.
_KEYTAB_NOT_FOUND, _KEY_VERSION_NOT_FOUND = 181, 230
_OTHER_KEY = (_BAD_INTEGRITY, _MODIFIED, _BAD_KEY_VERSION, _NO_KEY, _KEYTAB_NOT_FOUND, _KEY_VERSION_NOT_FOUND)

_SENTENCES = {
    _EXPIRED: (
        "your Kerberos ticket has expired: get a new one with kinit, or sign in to the domain again, and try once more",
        "the ticket has expired",
    ),
    _NOT_YET_VALID: (
        "your Kerberos ticket is not valid yet: get a new one with kinit, or sign in to the domain again, and try once"
        " more",
        "the ticket is not valid yet",
    ),
    _SKEW: (
        "the clock of your computer differs too much from the gateway's: correct it, and try again",
        "the clocks differ by more than Kerberos allows (clockskew)",
    ),
}
_UNREADABLE = (
    "the gateway cannot read your Kerberos ticket: get a new one with kinit, or sign in to the domain again, and try"
    " once more; if that does not help, tell the administrator of this gateway"
)


def number_of(error: GSSError) -> int:
    """Return the Kerberos error number, counted from 0."""
    code = int(error.min_code)
    return (code - (1 << 32) if code >= 1 << 31 else code) - _BASE


def text_of(error: GSSError) -> str:
    """Return the library's text, for the log."""
    return printable(" ".join(str(error).split()))[:300]


def refusal_of(error: GSSError, ticket: SentTicket, key_versions: tuple[int, ...]) -> LoginRefused:
    """Return the error for a ticket that the library rejected."""
    number = number_of(error)
    summary, cause = _SENTENCES.get(number, (_UNREADABLE, ""))
    if number in _OTHER_KEY:
        versions = ", ".join(map(str, key_versions)) or "none"
        cause = (
            f"the ticket for {ticket.service} is encrypted with key version {ticket.key_version}, which the keytab does"
            f" not have or has another key of; it has versions: {versions}"
        )
    return LoginRefused(summary, cause=f"{cause or 'it is not accepted'} ({text_of(error)})")


SPNEGO = gssapi.OID.from_int_seq("1.3.6.1.5.5.2")
KRB5 = gssapi.OID.from_int_seq("1.2.840.113554.1.2.2")


@dataclass(frozen=True, slots=True)
class Accepted:
    """An accepted ticket: its principal, and whether it is bound to this connection.

    `reply` authenticates the gateway to the client.
    """

    principal: Principal
    is_bound: bool
    reply: bytes = field(repr=False)


class Acceptor:
    """Accept tickets for *services*, with the keytab whose current entries *entries* returns."""

    def __init__(
        self, keytab: str, services: Callable[[], tuple[Principal, ...]], entries: Callable[[], tuple[KeytabEntry, ...]]
    ) -> None:
        self._keytab = keytab
        self._services = services
        self._entries = entries

    def accept(self, ticket: SentTicket, binding: bytes | None) -> Accepted:
        """Accept *ticket*. Raise `LoginRefused` if it is invalid, `ProviderError` if the keytab cannot be used."""
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
        """Pass *token* to the library. Raise `GSSError` if the library rejects it."""
        name = gssapi.Name(str(ticket.service), gssapi.NameType.kerberos_principal)
        store: dict[str | bytes, str | bytes] = {"keytab": f"FILE:{self._keytab}", "rcache": "none:"}
        try:
            credential = gssapi.Credentials(name=name, usage="accept", store=store, mechs=[KRB5, SPNEGO])
            # Excludes NTLM and IAKERB, whatever mechanisms are installed.
            set_neg_mechs(credential, [KRB5])
        except GSSError as error:
            # The key has just been removed, or the library cannot read a keytab that `read_keytab` could.
            cause = text_of(error)
            raise ProviderError("the keytab cannot be used", cause=cause, where=self._keytab) from None
        bindings = None if binding is None else ChannelBindings(application_data=binding)
        return accept_sec_context(token, credential, channel_bindings=bindings)

    def _why_refused(self, error: GSSError, ticket: SentTicket) -> LoginRefused:
        """Return the error for a rejected ticket. SPNEGO replaces error numbers, so Kerberos alone is tried again."""
        try:
            self._judge(ticket, ticket.mechanism_token, None)
        except GSSError as inner:
            error = inner
        versions = sorted({entry.key_version for entry in self._entries() if entry.service == ticket.service})
        return refusal_of(error, ticket, tuple(versions))


def _accepted(result: AcceptSecContextResult) -> Accepted:
    if result.more_steps or result.mech != KRB5:
        # A second round trip, or a mechanism selected by the negotiation.
        raise LoginRefused(
            "this program cannot sign in with Kerberos here: use another one, or another way to sign in",
            cause="the negotiation needs more than one request, or did not end with Kerberos",
        )
    # The name comes from the ticket. The library makes one up only for an anonymous ticket.
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


# Refreshes with ``renewal: kdc``: query the KDC, without the user, whether a principal may still sign in (S4U2Self,
# MS-SFU).
#
#     keytab -> ticket for the gateway itself -> a ticket from the user to the gateway, for the gateway alone
#
# The KDC denies the second ticket for a principal that is unknown, disabled or expired. The ticket is discarded, and
# nothing is done in the user's name.

_NO_LONGER = {
    CLIENT_EXPIRED: "the principal has expired",
    CLIENT_UNKNOWN: "the KDC does not know the principal",
    CLIENT_REVOKED: "the principal is disabled or locked",
}


class Kdc:
    """Query the KDC. *cache* names the in-memory ticket cache; the library refreshes the gateway's own ticket."""

    def __init__(self, keytab: str, *, cache: str) -> None:
        self._store: dict[str | bytes, str | bytes] = {"client_keytab": f"FILE:{keytab}", "ccache": f"MEMORY:{cache}"}

    def sign_in_as(self, service: Principal) -> gssapi.Credentials:
        """Get a ticket as *service*, which the keytab has a key of. Raise `ProviderError` if the KDC gives none."""
        name = gssapi.Name(str(service), gssapi.NameType.kerberos_principal)
        try:
            credential = gssapi.Credentials(name=name, usage="initiate", mechs=[KRB5], store=self._store)
            # The library calls the KDC only here.
            credential.inquire(lifetime=True)
        except GSSError as error:
            raise _outage(error) from None
        return credential

    def check(self, service: Principal, person: Principal) -> None:
        """Raise `LoginRefused` if *person* may not sign in any more, `ProviderError` if the KDC is unavailable."""
        credential = self.sign_in_as(service)
        name = gssapi.Name(str(person), gssapi.NameType.kerberos_principal)
        try:
            acquire_cred_impersonate_name(credential, name, mechs=[KRB5], usage="initiate")
        except GSSError as error:
            if (cause := _NO_LONGER.get(number_of(error))) is None:
                raise _outage(error) from None
            raise LoginRefused("this account is disabled or has expired", cause=cause) from None


def _outage(error: GSSError) -> ProviderError:
    return ProviderError(
        "the KDC could not be asked",
        cause=text_of(error),
        hint="check the krb5.conf of the gateway, and that kinit -k works with its keytab and service principal",
    )
