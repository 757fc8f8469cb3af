"""Asks the KDC whether a principal may still sign in, without the person: S4U2Self (MS-SFU).

    keytab -> ticket for the gateway itself -> a ticket from the person to the gateway, which only the gateway could use

Called at renewals, with ``renewal: kdc``. The KDC refuses the second ticket for a principal that is unknown, disabled
or has expired. It is thrown away: nothing is done in the person's name.
"""

from __future__ import annotations

import gssapi
from gssapi.raw import acquire_cred_impersonate_name
from gssapi.raw.misc import GSSError

from ostiary.errors import LoginRefused, ProviderError
from ostiary.plugins.kerberos.acceptor import KRB5
from ostiary.plugins.kerberos.failures import CLIENT_EXPIRED, CLIENT_REVOKED, CLIENT_UNKNOWN, number_of, text_of
from ostiary.plugins.kerberos.principals import Principal

_NO_LONGER = {
    CLIENT_EXPIRED: "the principal has expired",
    CLIENT_UNKNOWN: "the KDC does not know the principal",
    CLIENT_REVOKED: "the principal is disabled or locked",
}


class Kdc:
    """*cache* names the place in memory for the gateway's own ticket. The library obtains a new one when it must."""

    def __init__(self, keytab: str, *, cache: str) -> None:
        self._store: dict[str | bytes, str | bytes] = {"client_keytab": f"FILE:{keytab}", "ccache": f"MEMORY:{cache}"}

    def sign_in_as(self, service: Principal) -> gssapi.Credentials:
        """Raises `ProviderError` if the KDC gives no ticket to *service*, which the keytab has a key of."""
        name = gssapi.Name(str(service), gssapi.NameType.kerberos_principal)
        try:
            credential = gssapi.Credentials(name=name, usage="initiate", mechs=[KRB5], store=self._store)
            # Only now is the KDC asked.
            credential.inquire(lifetime=True)
        except GSSError as error:
            raise _outage(error) from None
        return credential

    def check(self, service: Principal, person: Principal) -> None:
        """Raises `LoginRefused` if *person* may not sign in any more, `ProviderError` if nobody says."""
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
