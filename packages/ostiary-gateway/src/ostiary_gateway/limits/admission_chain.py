"""The chain of admission providers: each may refuse a request that the policy allows.

Called by the engine before a request is forwarded, and when its answer is known. The providers are asked in the order
of the configuration, and the first refusal ends the chain.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from ostiary.errors import ProviderError
from ostiary.model import Attributes
from ostiary_gateway.interfaces.admission import Admission, AdmissionProvider

log = logging.getLogger("ostiary.gateway")


class AdmissionChain:
    def __init__(self, providers: Sequence[AdmissionProvider]) -> None:
        self._providers = providers

    def refusal_of(self, attributes: Attributes, *, size: int | None) -> Admission | None:
        """The first refusal, or None if every provider admits the request; raises `ProviderError` if one fails."""
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
        """Tell every provider how an admitted request ended."""
        for provider in self._providers:
            try:
                provider.settled(attributes, status=status)
            except Exception as error:
                _log_failure(error)


def _log_failure(error: Exception) -> None:
    log.error("an admission provider failed", extra={"cause": type(error).__name__})
