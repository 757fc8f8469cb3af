"""The exec plugin of this example: requests a token from the cluster itself, with a password from its environment."""

from __future__ import annotations

import os
from datetime import timedelta

from ostiary.sdk import ExecInfo, SignInRefused, Token, exec_plugin


@exec_plugin
def main(info: ExecInfo) -> Token:
    with info.http() as client:
        answer = client.post("/login", json={"password": os.environ["DEMO_PASSWORD"]})
    if answer.status_code != 200:
        raise SignInRefused("the server does not know this password")
    print("this line cannot spoil the answer")
    return Token(answer.json()["token"], expires_in=timedelta(seconds=answer.json()["expires_in"]))


if __name__ == "__main__":
    main()
