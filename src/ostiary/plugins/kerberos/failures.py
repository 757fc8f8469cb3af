"""What the Kerberos library says went wrong, in a sentence for the person and with a cause for the operator. Pure.

Called by `acceptor` and `kdc`. The numbers are those of the library's header ``krb5.h``; its texts are in the language
of the machine, and differ between versions.
"""

from __future__ import annotations

from gssapi.raw.misc import GSSError

from ostiary.core.text import printable
from ostiary.errors import LoginRefused
from ostiary.plugins.kerberos.negotiate import SentTicket

_BASE = -1765328384
# RFC 4120, section 7.5.9.
CLIENT_EXPIRED, CLIENT_UNKNOWN, CLIENT_REVOKED = 1, 6, 18
_BAD_INTEGRITY, _EXPIRED, _NOT_YET_VALID, _SKEW, _MODIFIED = 31, 32, 33, 37, 41
_BAD_KEY_VERSION, _NO_KEY = 44, 45
# Of the library itself.
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
    """Which error of Kerberos it is, from 0 on."""
    code = int(error.min_code)
    return (code - (1 << 32) if code >= 1 << 31 else code) - _BASE


def text_of(error: GSSError) -> str:
    """What the library says, for the log."""
    return printable(" ".join(str(error).split()))[:300]


def refusal_of(error: GSSError, ticket: SentTicket, key_versions: tuple[int, ...]) -> LoginRefused:
    """The refusal of a ticket that the library did not accept."""
    number = number_of(error)
    summary, cause = _SENTENCES.get(number, (_UNREADABLE, ""))
    if number in _OTHER_KEY:
        versions = ", ".join(map(str, key_versions)) or "none"
        cause = (
            f"the ticket for {ticket.service} is encrypted with key version {ticket.key_version}, which the keytab does"
            f" not have or has another key of; it has versions: {versions}"
        )
    return LoginRefused(summary, cause=f"{cause or 'it is not accepted'} ({text_of(error)})")
