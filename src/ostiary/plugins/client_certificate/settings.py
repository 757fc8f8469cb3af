"""The settings of the identity provider ``client_certificate``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from ostiary.core.settings.kinds import Flag
from ostiary.plugins.common.renewal import Renewal, RenewalSetting


@dataclass(frozen=True, slots=True)
class ClientCertificateSettings:
    credential_id: Annotated[
        bool, Flag("whether the user's extra fields have the id of the certificate", name="credentialID")
    ] = True
    renewal: RenewalSetting = Renewal.DEFAULT
