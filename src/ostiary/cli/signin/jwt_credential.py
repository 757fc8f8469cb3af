"""A JWT for a cluster that trusts the gateway's JWTs itself: exchanged for the gateway's token, and kept until it ends.

    <name>+<audience>.jwt      the credential, as `get_token` prints it
    <name>+<audience>.asked    which programs it was given to

Called by get-token with ``--jwt-for``. `cached_token` finds the same file when kubectl asks again.
"""

from __future__ import annotations

from contextlib import suppress

from ostiary.cli.cached_token import file_content, file_name, jwt_file_name, usable_answer
from ostiary.cli.signin import files
from ostiary.cli.signin.gateway import ExchangedToken, GatewayClient
from ostiary.cli.signin.sessions import GatewayAccount, renewal_margin
from ostiary.core.clock import SYSTEM_CLOCK, Clock
from ostiary.errors import OstiaryError
from ostiary.model import Secret
from ostiary.wire.client_authentication import V1, V1BETA1, ExecAnswer, decode_answer, encode_answer


class JwtCredential:
    """The JWT of one account for one audience. With names that are too long for a file nothing is kept."""

    def __init__(self, account: GatewayAccount, audience: str, *, clock: Clock = SYSTEM_CLOCK) -> None:
        self._audience = audience
        self._clock = clock
        name = file_name(account.server, account.name)
        file = None if name is None else jwt_file_name(name, audience)
        self._path = None if file is None else f"{files.folder()}/{file}"

    @property
    def askers_file(self) -> str | None:
        return None if self._path is None else f"{self._path}.asked"

    def ready(self) -> ExecAnswer | None:
        """The JWT that was kept, if it is good for a while."""
        data = None if self._path is None else files.read(f"{self._path}.jwt")
        answer = None if data is None else usable_answer(data, b"v1", self._clock.now().timestamp())
        return None if answer is None else decode_answer(answer, api_version=V1)

    def obtain(self, gateway: GatewayClient, token: Secret) -> ExecAnswer:
        """A new one, for the gateway's *token*."""
        granted = gateway.exchange_for_jwt(token, self._audience)
        answer = ExecAnswer(granted.token, None, None, granted.expires_at)
        # Without a home, or on a read-only disk, the credential is good all the same.
        with suppress(OstiaryError):
            self._keep(answer, granted)
        return answer

    def _keep(self, answer: ExecAnswer, granted: ExchangedToken) -> None:
        if self._path is None:
            return
        now = self._clock.now()
        content = file_content(
            obtained=int(now.timestamp()),
            renew_at=int((granted.expires_at - renewal_margin(granted.expires_at - now)).timestamp()),
            v1=encode_answer(answer, api_version=V1).encode(),
            v1beta1=encode_answer(answer, api_version=V1BETA1).encode(),
        )
        files.write(f"{self._path}.jwt", content)
        files.remove(f"{self._path}.asked")
