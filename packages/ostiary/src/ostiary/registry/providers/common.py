"""Common parts of the image credential providers for cloud registries (ECR, Google, Azure).

Signing in is left to the cloud's own library, which is imported when a request needs it. Its exceptions are converted
to one error without secrets.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from ostiary.core.redaction import redact
from ostiary.core.text import printable
from ostiary.errors import ConfigurationError, CredentialError, OstiaryError
from ostiary.model import Secret
from ostiary.sdk import ImageRequest


@contextmanager
def signing_in(request: ImageRequest, *, cloud: str, extra: str, hint: str) -> Iterator[None]:
    """Convert exceptions of a cloud's library; the error for a missing library names its *extra*."""
    try:
        yield
        return
    except OstiaryError:
        raise
    except ImportError as error:
        failure: OstiaryError = _missing(error.name or extra, extra)
    except Exception as error:
        failure = unavailable(request, f"{cloud}: {_describe_error(error, request)}", hint=hint)
    # Raised outside of the handler: the library's exception may hold the request that it sent.
    raise failure


def unavailable(request: ImageRequest, cause: str, *, hint: str) -> CredentialError:
    return CredentialError(
        f'no credential for image "{printable(request.image)}"',
        cause=cause,
        hint=hint,
        code="cloud-credential-unavailable",
    )


def _missing(module: str, extra: str) -> ConfigurationError:
    return ConfigurationError(
        "a library of this credential provider is missing",
        cause=f"the library {printable(module)} is missing",
        hint=f"pip install 'ostiary[{extra}]'",
        code="library-missing",
    )


def _describe_error(error: Exception, request: ImageRequest) -> str:
    text = redact(str(error), secrets=_reveal_all([request.service_account_token]))
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _reveal_all(secrets: Iterable[Secret | None]) -> Iterator[str]:
    return (secret.reveal() for secret in secrets if secret)
