"""The settings of the identity provider ``client_certificate``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from ostiary.core.settings.kinds import Flag, Text
from ostiary.plugins.common.renewal import Renewal, RenewalSetting
from ostiary.plugins.common.spiffe_id import TRUST_DOMAIN


@dataclass(frozen=True, slots=True)
class ClientCertificateSettings:
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
