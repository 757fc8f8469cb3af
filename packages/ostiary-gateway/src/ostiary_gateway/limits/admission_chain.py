"""The chain of admission providers.

Each may reject a request that the policy allows; the first rejection ends the chain.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from ostiary.errors import ProviderError
from ostiary.model import Attributes
from ostiary_gateway.interfaces.admission import Admission, AdmissionProvider

log = logging.getLogger("ostiary.gateway")


class AdmissionChain:
    """The admission providers of a gateway, in order."""

    def __init__(self, providers: Sequence[AdmissionProvider]) -> None:
        self._providers = providers

    def refusal_of(self, attributes: Attributes, *, size: int | None) -> Admission | None:
        """Return the first rejection, or None if all admit the request; raises `ProviderError` if a provider fails."""
        for provider in self._providers:
            try:
                admission = provider.admit(attributes, size=size)
                admitted = admission.admitted
            except Exception as error:
                _log_failure(error)
                raise ProviderError("an admission provider failed", cause=type(error).__name__) from error
            if not admitted:
                return admission
        return None

    def settle(self, attributes: Attributes, *, status: int) -> None:
        """Notify every provider of the outcome of an admitted request."""
        for provider in self._providers:
            try:
                provider.settled(attributes, status=status)
            except Exception as error:
                _log_failure(error)


def _log_failure(error: Exception) -> None:
    log.error("an admission provider failed", extra={"cause": type(error).__name__})
