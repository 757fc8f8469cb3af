"""oauth2-proxy, a peer of the gateway in Go: it checks OpenID Connect's tokens before one upstream.

It has no tokens of its own for programs, so that its requests bear JWTs, whose signature it verifies each time. It has
no permissions per request either. The program is built from Go modules by ``scripts/components bench``; where that
cannot be done, its rows are left out.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path

from joserfc import jwt
from joserfc.jwk import RSAKey

from bench.beside.site import Candidate, Site
from bench.peers import free_port, serving

NAME = "oauth2-proxy"
PROGRAM = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "ostiary-bench" / "oauth2-proxy-7.6.0"
ISSUER, AUDIENCE = "http://issuer.test", "bench"


class Issuer:
    """Makes the tokens that oauth2-proxy accepts."""

    def __init__(self) -> None:
        self._key = RSAKey.generate_key(2048, parameters={"kid": "bench", "alg": "RS256", "use": "sig"})

    def tokens(self, count: int) -> list[str]:
        hour = int(time.time()) + 3600
        claims = {"iss": ISSUER, "aud": AUDIENCE, "exp": hour, "iat": hour - 3600, "email_verified": True}
        header = {"alg": "RS256", "kid": "bench"}
        return [
            jwt.encode(header, {**claims, "sub": f"user-{number}", "email": f"user-{number}@example.test"}, self._key)
            for number in range(count)
        ]

    def key_set(self) -> bytes:
        return json.dumps({"keys": [self._key.as_dict(private=False)]}).encode()


@contextmanager
def oauth2_proxy(site: Site, issuer: Issuer) -> Iterator[Candidate]:
    home, port = site.folder / "oauth2-proxy", free_port()
    home.mkdir()
    with serving(_keys_of(issuer)) as keys:
        nowhere = "http://issuer.test"
        command = [
            # Where Go finds the authority of the upstream: there is no option for it.
            *(["env", f"SSL_CERT_FILE={site.certificates.authority}"] if site.certificates else []),
            str(PROGRAM),
            "--provider=oidc",
            "--skip-oidc-discovery",
            f"--oidc-issuer-url={ISSUER}",
            f"--oidc-jwks-url=http://127.0.0.1:{keys}/",
            f"--login-url={nowhere}/login",
            f"--redeem-url={nowhere}/token",
            f"--client-id={AUDIENCE}",
            "--client-secret=only-for-the-bench",
            "--cookie-secret=0123456789abcdef0123456789abcdef",
            "--email-domain=*",
            "--skip-jwt-bearer-tokens",
            f"--upstream={site.scheme}://127.0.0.1:{site.upstream}/",
            *_listen(site, port),
        ]
        with site.candidate(NAME, command, port, cwd=home, requests=NAME) as candidate:
            yield candidate


def _listen(site: Site, port: int) -> Sequence[str]:
    if site.certificates is None:
        return [f"--http-address=127.0.0.1:{port}"]
    files = [f"--tls-cert-file={site.certificates.chain}", f"--tls-key-file={site.certificates.key}"]
    return [f"--https-address=127.0.0.1:{port}", f"--http-address=127.0.0.1:{free_port()}", *files]


def _keys_of(issuer: Issuer) -> type[BaseHTTPRequestHandler]:
    class Keys(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(issuer.key_set())

        def log_message(self, format: str, *values: object) -> None: ...

    return Keys
