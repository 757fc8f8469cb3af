"""The program ``ostiary-demo-credential-provider``: a credential provider in ten lines, for trying the registry tools.

It returns a login for any registry. No registry accepts it.
"""

from __future__ import annotations

import os
import secrets
from datetime import timedelta

from ostiary.sdk import ImageCredentials, ImageRequest, image_provider


@image_provider
def main(request: ImageRequest) -> ImageCredentials:
    """A made-up login for any registry, to see how providers are configured, matched and cached.

    The username is $DEMO_USER, else "demo"; the password is random.
    """
    print(f"asked for {request.image}")  # noqa: T201 - goes to stderr: stdout is for the response
    username = os.environ.get("DEMO_USER", "demo")
    return ImageCredentials.for_registry(username, secrets.token_hex(8), cache=timedelta(minutes=10))


if __name__ == "__main__":
    main()
