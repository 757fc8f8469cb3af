"""The identity provider ``client_certificate``: the common name is the user, the organizations are groups.

    identity: [{name: machines, type: client_certificate}]
    groups: [{name: organizations, provider: machines}]

The listener verifies certificates against ``listen.tls.clientCA``; without that setting sign-in is impossible. With
``spiffeTrustDomain`` the name is the SPIFFE ID of an X.509-SVID, as used in service meshes and pod certificates. The
certificate is checked when a session begins; with ``renewal: signIn`` it is checked for every token.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from ostiary.core.clock import SYSTEM_CLOCK, Clock
from ostiary.core.yaml import ConfigSection
from ostiary.errors import LoginRefused
from ostiary.model import UserInfo
from ostiary_gateway.catalog import Context
from ostiary_gateway.interfaces.identity import LoginRequest, Produces, RenewalCheck, SignIn
from ostiary_gateway.providers.claims import ClaimedGroups
from ostiary_gateway.providers.client_certificate_reading import PeerCertificate, read_certificate
from ostiary_gateway.providers.common.refresh import Renewal, RenewalSetting, sign_in_again
from ostiary_gateway.providers.common.spiffe_id import TRUST_DOMAIN, parse_spiffe_id
from ostiary_gateway.settings.declare import read_settings
from ostiary_gateway.settings.kinds import Flag, Text


@dataclass(frozen=True, slots=True)
class ClientCertificateSettings:
    """The settings of the identity provider ``client_certificate``."""

    credential_id: Annotated[
        bool, Flag("whether the user's extra fields have the id of the certificate", name="credentialID")
    ] = True
    spiffe_trust_domain: Annotated[
        str,
        Text(
            "certificates are X.509-SVIDs of this trust domain, and the username is the SPIFFE ID in them",
            pattern=TRUST_DOMAIN,
            mistake="it is not the name of a trust domain",
            hint="as in example.org: in lower case, without spiffe://",
            empty="",
            unset="none: the username is the common name",
        ),
    ] = ""
    renewal: RenewalSetting = Renewal.DEFAULT


# kube-apiserver's extra field for the credential of a request, in audit records and for its webhooks.
CREDENTIAL_ID = "authentication.kubernetes.io/credential-id"


class ClientCertificateIdentity(ClaimedGroups):
    """Identify users by their client certificate.

    With *credential_id* the user's `extra` has the digest of the certificate. With *spiffe_trust_domain* certificates
    are X.509-SVIDs, and their subject is ignored.
    """

    sign_in = SignIn.AMBIENT
    needs_client_certificate = True
    renewal_check: RenewalCheck

    def __init__(
        self,
        *,
        credential_id: bool = True,
        spiffe_trust_domain: str = "",
        renewal: Renewal = Renewal.DEFAULT,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._trust_domain = spiffe_trust_domain
        self._credential_id = credential_id
        self._clock = clock
        self.renewal_check = renewal.check()
        if renewal is Renewal.SIGN_IN:
            self.revalidate = sign_in_again

    @classmethod
    def from_config(cls, fields: ConfigSection, context: Context) -> ClientCertificateIdentity:
        settings = read_settings(ClientCertificateSettings, fields, context.directory)
        return cls(
            credential_id=settings.credential_id,
            spiffe_trust_domain=settings.spiffe_trust_domain,
            renewal=settings.renewal,
            clock=context.clock,
        )

    def produces(self) -> Produces:
        return Produces(uid=False, extra=(CREDENTIAL_ID,) if self._credential_id else ())

    async def handle_client(self, request: LoginRequest) -> UserInfo:
        if request.peer_certificate is None:
            raise LoginRefused("present a client certificate", cause="the connection has no client certificate")
        certificate = read_certificate(request.peer_certificate)
        if certificate is None or not certificate.is_valid(self._clock.now()):
            raise LoginRefused(
                "the client certificate is not valid",
                cause="it cannot be read, is not for clients, has expired or is not yet valid",
            )
        extra = ((CREDENTIAL_ID, (f"X509SHA256={certificate.digest}",)),) if self._credential_id else ()
        if self._trust_domain:
            return UserInfo(_spiffe_name(certificate, self._trust_domain), extra=extra)
        name = certificate.common_name
        if name == "" or not name.isprintable() or name != name.strip():
            raise LoginRefused(
                "the client certificate has no user name",
                cause="it has no common name that can be used, or has several",
            )
        return UserInfo(name, groups=tuple(dict.fromkeys(certificate.organizations)), extra=extra)

    async def handle_provider(self, request: LoginRequest) -> UserInfo:
        raise LoginRefused("there is no sign-in to continue: start again", cause="a certificate sends nobody elsewhere")


def _spiffe_name(certificate: PeerCertificate, trust_domain: str) -> str:
    """Return the SPIFFE ID of an X.509-SVID (X509-SVID, sections 2 and 5.2). Raises `LoginRefused`."""
    identity = parse_spiffe_id(certificate.uris[0]) if len(certificate.uris) == 1 else None
    if identity is None or identity.trust_domain != trust_domain or certificate.may_sign:
        raise LoginRefused(
            "the client certificate is not one of the trust domain",
            cause="it has not exactly one URI, which is a SPIFFE ID of the trust domain, or it may sign others",
        )
    return str(identity)
