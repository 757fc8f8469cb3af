"""Every exception that ostiary raises.

    OstiaryError
    ├── ConfigurationError       a file or an option is invalid: fix it, then try again
    │   ├── LibraryMissing       an extra is not installed: the hint says what to install
    │   ├── ImageNameError       a text is not the name of an image
    │   └── ScopeError           a token scope is invalid, or wider than allowed
    ├── CredentialError          there is no credential, so no request was sent
    │   ├── PluginRefused        the plugin policy of this process does not allow the command
    │   ├── PluginNotFound       the command does not exist or cannot be executed
    │   ├── PluginNotInteractive it needs a user at a terminal, and there is none
    │   ├── PluginFailed         it ran and failed: exit code, signal, time limit
    │   ├── AnswerInvalid        it ran, and its output is not a credential
    │   ├── BackingOff           it failed recently and is not run again yet (`retry_after`)
    │   ├── SourceFailed         the application's own credential source failed, or returned an unusable credential
    │   └── RequestNotSigned     a request signer failed, or cannot sign this request
    ├── TransportError           TLS or a proxy cannot be set up as configured
    │   └── KeyUnusable          a device key cannot be opened, or does not sign: see `code`
    │       ├── PinNeeded        its device requires a PIN, and none is available
    │       └── PinWrong         its device rejected the PIN, which is not tried again
    ├── LoginRefused             an identity or group provider denied the sign-in
    ├── AccessRefused            a request to an API that checks itself is denied; `status` and `body` are the response
    ├── TooManyRequests          a user exceeded a limit: try again after `retry_after` seconds
    └── ProviderError            a provider, a store or an upstream is unavailable: no decision either way
        └── AuditUnavailable     an event cannot be stored, so its action must not happen

The class says what a caller can do about it. `code` is stable, and each one is documented in
``docs/reference/errors.md``. An error never contains a plugin's stdout: what could not be decoded may be the token
itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

from ostiary.model import Place, Problem

CODES: dict[str, str] = {
    "config-unreadable": "a configuration file is missing or cannot be read",
    "config-syntax": "a configuration file is not YAML or JSON of the expected shape",
    "config-invalid": "a configuration has values that cannot be used",
    "config-not-found": "there is no configuration, or the context, cluster or user is unknown",
    "kubeconfig-name-taken": "a kubeconfig has an entry of this name that belongs to another server or user",
    "kuberc-invalid": "the kuberc file that holds the plugin policy cannot be used",
    "image-name-invalid": "a text is not the name of a container image",
    "mirrors-invalid": "a mirror configuration of a container runtime cannot be used",
    "exec-plugin-denied": "permission denied: the plugin policy of this program does not allow the command",
    "exec-plugin-not-found": "the exec plugin's command does not exist",
    "exec-plugin-not-executable": "the exec plugin's command exists, but cannot be executed",
    "exec-plugin-needs-terminal": "the exec plugin is interactive, and there is no terminal",
    "exec-plugin-environment-too-large": "the exec plugin's environment is larger than the system allows",
    "exec-plugin-failed": "the exec plugin ended with an exit code other than zero",
    "exec-plugin-killed": "the exec plugin was killed by a signal",
    "exec-plugin-timeout": "the exec plugin exceeded its time limit",
    "exec-plugin-output-too-large": "the exec plugin printed more than a credential can be",
    "exec-plugin-answer-undecodable": "what the exec plugin printed is not one JSON or YAML object",
    "exec-plugin-answer-version": "the exec plugin returned another apiVersion or kind than requested",
    "exec-plugin-answer-invalid": "the exec plugin's answer holds no usable credential",
    "exec-plugin-answer-expired": "the exec plugin returned a credential that has already expired",
    "exec-plugin-backing-off": "the exec plugin failed a moment ago and is not retried yet",
    "exec-env-unavailable": "a variable of the exec plugin cannot be read from where the kubeconfig says",
    "own-source-failed": "the program's own source of credentials failed",
    "own-source-invalid": "the program's own source gave no credential that can be used",
    "request-signing-failed": "a request could not be signed, so it was not sent",
    "request-body-streamed": "the signer needs a body that can be read only once",
    "auth-provider-unusable": "the auth-provider of the kubeconfig's user is unknown, was removed, or is incomplete",
    "oidc-token-unavailable": "the id-token of the oidc auth-provider has expired, and no new one can be obtained",
    "thread-limit-reached": "no thread could be started to run an exec plugin or a credential provider in",
    "credential-provider-not-found": "the credential provider's executable does not exist",
    "credential-provider-not-executable": "the credential provider's executable cannot be executed",
    "credential-provider-failed": "the credential provider ended with an exit code other than zero",
    "credential-provider-killed": "the credential provider was killed by a signal",
    "credential-provider-timeout": "the credential provider exceeded its time limit",
    "credential-provider-output-too-large": "the credential provider printed more than an answer can be",
    "credential-provider-answer-undecodable": "what the credential provider printed is not one JSON object",
    "credential-provider-answer-version": "the credential provider returned another apiVersion or kind",
    "credential-provider-answer-invalid": "the credential provider's answer cannot be used",
    "credential-provider-request-invalid": "a credential provider received an invalid request",
    "service-account-token-unavailable": "the token of a pod's service account could not be obtained",
    "api-server-unreachable": "the API server of a kubeconfig, or of the pod, is unreachable",
    "token-exchange-failed": "a server did not exchange a service account token for one that the registry accepts",
    "cloud-credential-unavailable": "a cloud returned no credential for its image registry",
    "library-missing": "a required library is not installed",
    "registry-switch-unusable": "it cannot be known which credential providers are disabled, so none is used",
    "registry-socket-not-ours": "the socket of the credential daemon belongs to another user",
    "registry-socket-unusable": "the credential daemon cannot listen: its socket, address or certificate is unusable",
    "registry-daemon-unreachable": "the credential daemon does not run, or has not answered in time",
    "credential-server-failed": "the credential server of a cluster did not return a credential",
    "docker-helper-not-found": "a docker credential helper does not exist or cannot be executed",
    "docker-helper-failed": "a docker credential helper failed",
    "docker-helper-answer-invalid": "what a docker credential helper printed is not a login",
    "token-file-unreadable": "the file that should hold the token cannot be read",
    "token-file-unwritable": "the file or folder for a token cannot be written",
    "connect-unavailable": "the proxy of ostiary connect does not run, does not answer, or cannot be started",
    "connect-socket-foreign": "the socket of ostiary connect, or its folder, belongs to another user",
    "connect-context-unknown": "a context cannot be served by ostiary connect: unknown, expired, or its own",
    "connect-port-taken": "another process listens on the port of a context of ostiary connect",
    "tls-invalid": "the TLS settings cannot be used together, or a certificate cannot be loaded",
    "key-address-invalid": "the address of a key that is kept elsewhere cannot be read, or its scheme is unknown",
    "key-unsupported": "this Python cannot use keys that are kept elsewhere",
    "key-not-found": "the device has no such key, or there is no such device",
    "key-mismatch": "the key does not belong to the certificate",
    "key-pin-needed": "the device asks for a PIN, and there is none and nobody to ask",
    "key-pin-wrong": "the PIN is wrong: it is not tried again until it changes",
    "key-pin-locked": "the PIN is locked, or one more wrong PIN would lock it",
    "key-device-failed": "the device, service or command that has the key cannot sign",
    "key-device-busy": "the device is used by another process",
    "key-device-timeout": "the device, service or command that has the key did not sign in time",
    "key-refused": "permission denied: the service that has the key, or the plugin policy, does not allow it",
    "proxy-invalid": "the proxy URL is invalid",
    "exec-info-missing": "a plugin was started without KUBERNETES_EXEC_INFO, or with a broken one",
    "exec-info-without-cluster": "a plugin needs cluster info, and the kubeconfig does not set provideClusterInfo",
    "sign-in-refused": "sign-in was refused by the identity system or by the user",
    "sign-in-needed": "there is no session at the gateway, and interactive sign-in is not allowed",
    "sign-in-unanswered": "sign-in timed out",
    "step-up-needed": "step-up required",
    "platform-proof-unavailable": "the platform gave this job or pod no token that the gateway can be shown",
    "platform-unreachable": "the platform's token endpoint is unreachable",
    "gateway-unreachable": "the gateway is unreachable, or its certificate cannot be verified",
    "gateway-answer-invalid": "the server is not a gateway, or its version is not supported",
    "session-file-unsafe": "the files that hold a session cannot be trusted, or cannot be written",
    "login-refused": "an identity or group provider refused this user",
    "provider-failed": "a provider of the gateway is unavailable, or broke its contract",
    "plugin-not-found": "unknown provider: no installed package declares it",
    "plugin-ambiguous": "duplicate provider: two installed packages declare the same name",
    "plugin-broken": "an installed provider cannot be loaded",
    "token-store-full": "the token store takes no more objects of a kind",
    "token-store-unavailable": "the token store cannot be opened, read or written",
    "token-store-of-another-gateway": "the token store belongs to another gateway",
    "store-in-use": "a token store that is to be moved or filled is used by a gateway or another command",
    "store-not-empty": "the token store to move to holds other sessions, or later revocations, than the one to move",
    "store-not-movable": "the token store cannot be read, or filled, as a whole",
    "store-changed": "the token store was changed while it was moved: what was copied is not complete",
    "issuer-key-unusable": "a key that signs JWTs, or the secret that seals it, is missing or cannot be used",
    "issuer-audience-refused": "no JWT is issued for this audience",
    "issuer-narrowed-token": "a token with fewer rights than its owner cannot be exchanged for a JWT",
    "audit-unavailable": "an audit event cannot be stored",
    "too-many-requests": "too many requests: a limit of the gateway is exceeded",
    "gateway-refused": "permission denied: a gateway refused the request of a command",
    "api-plugin-refused": "an API plugin cannot be registered, found or removed as asked",
    "account-refused": "a service account or an API token cannot be created, changed or found as asked",
    "revocation-not-found": "unknown revocation: it cannot be undone",
    "scope-invalid": "a scope for a token cannot be read, or is wider than that of the token it is made with",
    "decision-not-found": "unknown decision id: it is neither remembered nor recorded",
    "access-refused": "permission denied: a request to an API that checks tokens and policy itself was refused",
    "usage": "invalid command line",
}


class OstiaryError(Exception):
    """The base class: a summary, and as far as known the cause, position and remedy."""

    default_code = "config-invalid"
    # The affected user, as far as known, for the operator's log.
    username: str = ""

    def __init__(
        self,
        summary: str,
        *,
        cause: str | None = None,
        where: Place | str | None = None,
        hint: str | None = None,
        code: str | None = None,
    ) -> None:
        self.summary = summary
        self.cause = cause
        self.where = where
        self.hint = hint
        self.code = code or self.default_code
        assert self.code in CODES, f"undocumented error code {self.code}"
        super().__init__(summary)

    def lines(self) -> list[tuple[str, str]]:
        """Return the lines below the summary for display: (name, text)."""
        parts = [("cause", self.cause), ("where", self.where), ("hint", self.hint), ("code", self.code)]
        return [(name, str(text)) for name, text in parts if text]

    def __str__(self) -> str:
        rows = [self.summary]
        for name, text in self.lines():
            first, *rest = text.splitlines() or [""]
            rows.append(f"  {name:<6} {first}")
            rows.extend(f"  {'':<6} {line}" for line in rest)
        return "\n".join(rows)

    def again(self) -> Self:
        """Return a copy of this error for another caller.

        Many callers wait for one plugin run. Raising one exception object in all their threads would mix up their
        tracebacks.
        """
        twin = type(self).__new__(type(self))
        twin.__dict__.update(self.__dict__)
        twin.args = self.args
        twin.__cause__ = self.__cause__
        return twin


class ConfigurationError(OstiaryError):
    """A file or an option is invalid. `problems` lists all errors found."""

    def __init__(self, summary: str, *, problems: Sequence[Problem] = (), **parts: object) -> None:
        self.problems = tuple(problems)
        if len(self.problems) == 1 and not parts.get("cause"):
            (problem,) = self.problems
            parts = {"cause": problem.message, "where": problem.place, "hint": problem.hint, **parts}
        elif self.problems and not parts.get("cause"):
            parts["cause"] = "\n".join(_with_hint(problem) for problem in self.problems)
        super().__init__(summary, **parts)  # type: ignore[arg-type]


class LibraryMissing(ConfigurationError, ModuleNotFoundError):
    """An extra is not installed. Also a `ModuleNotFoundError`, for code that catches that."""

    default_code = "library-missing"


class ImageNameError(ConfigurationError):
    default_code = "image-name-invalid"


class ScopeError(ConfigurationError):
    default_code = "scope-invalid"


def _with_hint(problem: Problem) -> str:
    return f"{problem} ({problem.hint})" if problem.hint else str(problem)


class CredentialError(OstiaryError):
    """There is no credential, so the request was not sent."""

    default_code = "exec-plugin-failed"


class PluginRefused(CredentialError):
    default_code = "exec-plugin-denied"


class PluginNotFound(CredentialError):
    default_code = "exec-plugin-not-found"


class PluginNotInteractive(CredentialError):
    default_code = "exec-plugin-needs-terminal"


class PluginFailed(CredentialError):
    """The plugin ran and failed. `exit_code` is -1 if it was ended by a signal or by us."""

    default_code = "exec-plugin-failed"

    def __init__(self, summary: str, *, exit_code: int = -1, **parts: object) -> None:
        self.exit_code = exit_code
        super().__init__(summary, **parts)  # type: ignore[arg-type]


class AnswerInvalid(CredentialError):
    default_code = "exec-plugin-answer-invalid"


class BackingOff(CredentialError):
    """The plugin is not run again for `retry_after` seconds. `__cause__` is the last failure."""

    default_code = "exec-plugin-backing-off"

    def __init__(self, summary: str, *, retry_after: float, **parts: object) -> None:
        self.retry_after = retry_after
        super().__init__(summary, **parts)  # type: ignore[arg-type]


class SourceFailed(CredentialError):
    default_code = "own-source-failed"


class RequestNotSigned(CredentialError):
    default_code = "request-signing-failed"


class TransportError(OstiaryError):
    default_code = "tls-invalid"


class KeyUnusable(TransportError):
    """A device key cannot be opened, or does not sign. `code` says which."""

    default_code = "key-device-failed"


class PinNeeded(KeyUnusable):
    """The device requires a PIN. `label` is its display name."""

    default_code = "key-pin-needed"

    def __init__(self, summary: str, *, label: str = "", **parts: object) -> None:
        self.label = label
        super().__init__(summary, **parts)  # type: ignore[arg-type]


class PinWrong(KeyUnusable):
    default_code = "key-pin-wrong"


class LoginRefused(OstiaryError):
    """The sign-in is denied. The summary may be shown to the user; the cause is for the log.

    The client gets a 403; with `www_authenticate` a 401, because other credentials may succeed; with `retry_after`
    (seconds) a 429, because it is too early for any.
    """

    default_code = "login-refused"

    def __init__(
        self, summary: str, *, www_authenticate: str = "", retry_after: float | None = None, **parts: object
    ) -> None:
        self.www_authenticate = www_authenticate
        self.retry_after = retry_after
        super().__init__(summary, **parts)  # type: ignore[arg-type]


class AccessRefused(OstiaryError):
    """A request to an API that checks tokens and policy itself is denied, or could not be decided.

    `status`, `headers` and `body` are the response: a Kubernetes ``Status`` that does not reveal the cause. The
    middleware sends it. A framework that catches exceptions itself needs a handler that does. `cause` is for the log.
    """

    default_code = "access-refused"

    def __init__(
        self, summary: str, *, status: int, headers: Sequence[tuple[str, str]], body: bytes, **parts: object
    ) -> None:
        self.status = status
        self.headers = tuple(headers)
        self.body = body
        super().__init__(summary, **parts)  # type: ignore[arg-type]

    @property
    def response(self) -> tuple[bytes, int, list[tuple[str, str]]]:
        """Body, status and headers, in the form that Flask accepts from a handler."""
        return self.body, self.status, list(self.headers)


class ProviderError(OstiaryError):
    """A provider, a store or an upstream is unavailable, so access is not granted. The caller may retry later.

    `reported` is the error that the external system itself reported, if any. It may be shown to the user who signs in,
    so it must be short and contain no secret.
    """

    default_code = "provider-failed"

    def __init__(self, summary: str, *, reported: str = "", **parts: object) -> None:
        self.reported = reported
        super().__init__(summary, **parts)  # type: ignore[arg-type]


class AuditUnavailable(ProviderError):
    default_code = "audit-unavailable"


class TooManyRequests(OstiaryError):
    """A limit of the gateway is exhausted; the request was not processed. Retry after `retry_after` seconds."""

    default_code = "too-many-requests"

    def __init__(self, summary: str, *, retry_after: float, **parts: object) -> None:
        self.retry_after = retry_after
        super().__init__(summary, **parts)  # type: ignore[arg-type]
