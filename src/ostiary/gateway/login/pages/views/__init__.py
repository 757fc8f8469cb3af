"""The pages of ``/auth``, one function each: values in, page out. Pure.

Called by the sign-in routes and the pages, as ``views.home(...)``. What somebody else has chosen (a name, a client, a
group) is passed as a value and so escaped; see `ostiary.gateway.login.pages.templates`.
"""

from ostiary.gateway.login.pages.views.errors import application_error, error, is_basic, message, signed_out
from ostiary.gateway.login.pages.views.programs import (
    cli_confirm,
    cli_ended,
    device_code,
    device_confirm,
    step_up_confirm,
)
from ostiary.gateway.login.pages.views.sign_in import choose, leaving, password, posted_form
from ostiary.gateway.login.pages.views.signed_in import home, session_row, sessions, sign_out, token
from ostiary.gateway.login.pages.views.site import Site

__all__ = [
    "Site",
    "application_error",
    "choose",
    "cli_confirm",
    "cli_ended",
    "device_code",
    "device_confirm",
    "error",
    "home",
    "is_basic",
    "leaving",
    "message",
    "password",
    "posted_form",
    "session_row",
    "sessions",
    "sign_out",
    "signed_out",
    "step_up_confirm",
    "token",
]
