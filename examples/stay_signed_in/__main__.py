"""Start the server, write a kubeconfig, and run the client: one client, one line, one request per second.

The demo runs in real time. Ctrl-C ends it.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path

import ostiary
from examples.stay_signed_in.api_server import ApiServer

PLUGIN = Path(__file__).with_name("plugin.py")


def write_kubeconfig(folder: Path, server: ApiServer, *, password: str) -> Path:
    stanza = {
        "apiVersion": "client.authentication.k8s.io/v1",
        "command": sys.executable,
        "args": [str(PLUGIN)],
        "env": [{"name": "DEMO_PASSWORD", "value": password}],
        "interactiveMode": "Never",
        "provideClusterInfo": True,
    }
    authority = folder / "ca.pem"
    authority.write_bytes(server.authority.cert_pem.bytes())
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "demo",
        "clusters": [{"name": "demo", "cluster": {"server": server.url, "certificate-authority": str(authority)}}],
        "users": [{"name": "you", "user": {"exec": stanza}}],
        "contexts": [{"name": "demo", "context": {"cluster": "demo", "user": "you"}}],
    }
    path = folder / "kubeconfig"
    path.touch(mode=0o600)
    path.write_text(json.dumps(config, indent=1))
    return path


def program(kubeconfig: Path, server: ApiServer, *, requests: int, interval: float) -> None:
    started = time.monotonic()
    # The one line that an application needs: everything else here only shows what happens.
    client = ostiary.connect(kubeconfig).httpx()
    revoked = False
    with client:
        for number in range(requests):
            refused, tokens = server.refusals, server.logins
            answer = client.get("/api/v1/namespaces/default/pods")
            note = " (a 401, a new token, sent again)" if server.refusals > refused else ""
            print(
                f"  {time.monotonic() - started:5.1f} s  {answer.status_code}  {len(answer.json()['items'])} pods"
                f"   tokens so far: {server.logins}{note}",
                flush=True,
            )
            time.sleep(interval)
            if number > requests // 2 and server.logins > tokens and not revoked:
                # Right after a new token was issued, so that it ends by the revocation and not by its age.
                print("           an administrator revokes every token")
                server.revoke_everything()
                revoked = True


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=18, help="how many (default 18)")
    parser.add_argument("--interval", type=float, default=1.0, help="seconds between them (default 1)")
    parser.add_argument("--token-seconds", type=float, default=5.0, help="how long a token lives (default 5)")
    options = parser.parse_args()
    password = "open-sesame"
    server = ApiServer(password=password, token_seconds=options.token_seconds)
    with server.running(), tempfile.TemporaryDirectory() as folder:
        kubeconfig = write_kubeconfig(Path(folder), server, password=password)
        print(f"An API server on {server.url}; its tokens live {options.token_seconds:g} s.")
        print("A program with one client, signed in by the exec plugin of its kubeconfig:\n")
        program(kubeconfig, server, requests=options.requests, interval=options.interval)
        print(f"\n{options.requests} requests, {server.logins} tokens, none lost, no restart.")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
