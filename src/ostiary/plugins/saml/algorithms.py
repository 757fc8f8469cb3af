"""The signatures that are believed, by the names of the setting ``algorithms``. Imports no library.

SHA-1, DSA, and all that is keyed by a shared secret are left out for good.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

_MORE_2001 = "http://www.w3.org/2001/04/xmldsig-more#"
_MORE_2007 = "http://www.w3.org/2007/05/xmldsig-more#"
_BITS = (256, 384, 512)

ALGORITHMS: Mapping[str, str] = MappingProxyType(
    {
        **{f"rsa-sha{bits}": f"{_MORE_2001}rsa-sha{bits}" for bits in _BITS},
        **{f"ecdsa-sha{bits}": f"{_MORE_2001}ecdsa-sha{bits}" for bits in _BITS},
        **{f"sha{bits}-rsa-mgf1": f"{_MORE_2007}sha{bits}-rsa-MGF1" for bits in _BITS},
    }
)
