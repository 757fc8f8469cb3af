"""Why an API plugin cannot be registered or removed. The messages are for whoever asked."""

from __future__ import annotations

from ostiary.gateway.accounts.refusals import AccountRefusal


class PluginRefusal(AccountRefusal):
    """It is understood, and cannot be done as things are."""

    default_code = "api-plugin-refused"
    status, reason = 422, "Invalid"


class GroupTaken(PluginRefusal):
    status, reason = 409, "Conflict"


class UnknownPlugin(PluginRefusal):
    status, reason = 404, "NotFound"

    def __init__(self, name: str) -> None:
        super().__init__(f'there is no API plugin "{name}"')
