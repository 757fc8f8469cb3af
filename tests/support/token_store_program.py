"""A program that issues and revokes tokens until it is killed or the disk is full, and tells what was acknowledged.

Started by tests/e2e/test_token_store_crash.py as a process of its own. It prints ``kept DIGEST`` after a token was
stored and ``gone DIGEST`` after one was revoked, and never before.
"""

from __future__ import annotations

import asyncio
import os
import resource
import sys

from ostiary.errors import ProviderError
from ostiary.model import UserInfo
from ostiary_gateway.interfaces.token_store import RevocationKind
from ostiary_gateway.sessions import Tokens, digest
from ostiary_gateway.stores.sqlite.token_store import SqliteTokenStore

AT_ONCE = 20


def say(word: str, token: str) -> None:
    # Not through a buffer: what was said must be out when the signal comes.
    os.write(1, f"{word} {digest(token).hex()}\n".encode())


async def sign_in_and_out(tokens: Tokens, name: str) -> None:
    number = 0
    while True:
        number += 1
        user = UserInfo(f"{name}-{number}", groups=("dev", f"of {name}"))
        issued = await tokens.issue(user, provider="staff")
        token = issued.token.reveal()
        if number % 3 == 0:
            await tokens.revoke(RevocationKind.SESSION, issued.session.id)
            say("gone", token)
        elif number % 3 == 1:
            await tokens.revoke(RevocationKind.USER, user.username)
            say("gone", token)
        else:
            say("kept", token)


async def main(path: str, name: str, file_limit: str = "") -> int:
    if file_limit:
        # Writing past it fails as it does when a disk or a quota is full: Python ignores the signal.
        resource.setrlimit(resource.RLIMIT_FSIZE, (int(file_limit), int(file_limit)))
    tokens = Tokens(SqliteTokenStore(path))
    workers = [sign_in_and_out(tokens, f"{name}-{number}") for number in range(AT_ONCE)]
    outcomes = await asyncio.gather(*workers, return_exceptions=True)
    refused = [isinstance(each, ProviderError) and each.code == "token-store-unavailable" for each in outcomes]
    return 0 if all(refused) else 1


if __name__ == "__main__":
    sys.exit(asyncio.run(main(*sys.argv[1:])))
