"""Refusals as kube-apiserver words them: a Status object, byte for byte."""

from __future__ import annotations

from typing import Any

from tests.support.cluster.http import Answer, json_answer
from tests.support.cluster.resources import Asked


class Refused(Exception):
    """The request is answered with this Status."""

    def __init__(self, code: int, reason: str, message: str, details: dict[str, Any] | None = None) -> None:
        super().__init__(message)
        self.code, self.reason, self.message, self.details = code, reason, message, details

    @property
    def answer(self) -> Answer:
        # Kubernetes says nosniff where the message may repeat what the client sent.
        headers = {"X-Content-Type-Options": "nosniff"} if self.reason == "Forbidden" else {}
        return json_answer(self.code, self.status, headers)

    @property
    def status(self) -> dict[str, Any]:
        return {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": self.message,
            "reason": self.reason,
            **({} if self.details is None else {"details": self.details}),
            "code": self.code,
        }


def deleted(asked: Asked, uid: str) -> dict[str, Any]:
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Success",
        "details": {**_details(asked, asked.name), "uid": uid},
    }


def unauthorized() -> Refused:
    return Refused(401, "Unauthorized", "Unauthorized")


def forbidden(user: str, asked: Asked, reason: str = "") -> Refused:
    why = f": {reason}" if reason else ""
    if not asked.resource:
        return Refused(403, "Forbidden", f'forbidden: User "{user}" cannot {asked.verb} path "{asked.path}"{why}', {})
    full = asked.resource + (f"/{asked.subresource}" if asked.subresource else "")
    where = f'in the namespace "{asked.namespace}"' if asked.namespace else "at the cluster scope"
    what = f'User "{user}" cannot {asked.verb} resource "{full}" in API group "{asked.group}" {where}'
    message = f"{_quoted(asked, asked.name)} is forbidden: {what}{why}"
    return Refused(403, "Forbidden", message, _details(asked, asked.name))


def not_found(asked: Asked, name: str) -> Refused:
    return Refused(404, "NotFound", f"{_quoted(asked, name)} not found", _details(asked, name))


def namespace_not_found(name: str) -> Refused:
    return Refused(404, "NotFound", f'namespaces "{name}" not found', {"name": name, "kind": "namespaces"})


def already_exists(asked: Asked, name: str) -> Refused:
    return Refused(409, "AlreadyExists", f"{_quoted(asked, name)} already exists", _details(asked, name))


def conflict(asked: Asked, name: str) -> Refused:
    why = "the object has been modified; please apply your changes to the latest version and try again"
    message = f"Operation cannot be fulfilled on {_quoted(asked, name)}: {why}"
    return Refused(409, "Conflict", message, _details(asked, name))


def bad_request(message: str) -> Refused:
    return Refused(400, "BadRequest", message)


def method_not_allowed() -> Refused:
    message = "the server does not allow this method on the requested resource"
    return Refused(405, "MethodNotAllowed", message, {})


def unsupported_media_type(accepted: list[str]) -> Refused:
    known = ", ".join(accepted)
    message = f"the body of the request was in an unknown format - accepted media types include: {known}"
    return Refused(415, "UnsupportedMediaType", message, {})


def failed_inside(message: str) -> Refused:
    causes = {"causes": [{"message": message}]}
    return Refused(500, "InternalError", f"Internal error occurred: {message}", causes)


def exit_status(code: int) -> dict[str, Any]:
    """What the error stream of an exec says at its end."""
    if code == 0:
        return {"metadata": {}, "status": "Success"}
    return {
        "metadata": {},
        "status": "Failure",
        "message": f"command terminated with non-zero exit code: exit status {code}",
        "reason": "NonZeroExitCode",
        "details": {"causes": [{"reason": "ExitCode", "message": str(code)}]},
    }


def _quoted(asked: Asked, name: str) -> str:
    full = f"{asked.resource}.{asked.group}" if asked.group else asked.resource
    return f'{full} "{name}"' if name else full


def _details(asked: Asked, name: str) -> dict[str, Any]:
    details = {"name": name, "group": asked.group, "kind": asked.resource}
    return {key: value for key, value in details.items() if value}
