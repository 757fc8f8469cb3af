"""Start an API and a gateway in front of it, show what the gateway does, and check every step.

Needs no terminal, leaves no files behind, and exits with code 1 if a check fails.
"""

from __future__ import annotations

import json
import ssl
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import trustme

from examples.gateway.sample_api import SampleApi
from examples.gateway.site import Site

PODS = "/api/v1/namespaces/shop/pods"
OWN = "/apis/ostiary.dev/v1"
SECONDS = 20.0


class NotSo(Exception):
    """A check of the demo failed."""


def check(so: bool, what: str) -> None:
    if not so:
        raise NotSo(what)


def heading(text: str) -> None:
    print(f"\n{text}\n{'-' * len(text)}", flush=True)


def show(text: str) -> None:
    print(f"  {text}".rstrip(), flush=True)


class Watch:
    """An open watch, in a thread. `ended_at` is the time when the stream was closed."""

    def __init__(self, client: httpx.Client) -> None:
        self._client = client
        self.names: list[str] = []
        self.ended_at = 0.0
        self._news = threading.Condition()
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def wait_for(self, name: str) -> None:
        with self._news:
            check(self._news.wait_for(lambda: name in self.names, SECONDS), f"the watch tells of {name}")

    def wait_for_end(self) -> None:
        self._thread.join(SECONDS)
        check(self.ended_at > 0, "the watch has ended")

    def _read(self) -> None:
        try:
            with self._client.stream("GET", PODS, params={"watch": "true"}, timeout=SECONDS) as answer:
                for line in answer.iter_lines():
                    with self._news:
                        self.names.append(json.loads(line)["object"]["metadata"]["name"])
                        self._news.notify_all()
        except httpx.HTTPError:
            # The gateway closes the stream without the final chunk, so the client does not treat it as complete.
            self.ended_at = time.monotonic()


class Demo:
    def __init__(self, site: Site, api: SampleApi, url: str, trust: ssl.SSLContext) -> None:
        self._site, self._api, self._url, self._trust = site, api, url, trust

    def run(self) -> None:
        alice, bob, operator = (self._sign_in(user) for user in ("alice", "bob", "operator"))
        with closing(alice), closing(bob), closing(operator):
            self._who_may(alice)
            self._explain(operator, self._who_may_not(alice, bob))
            self._revocation(alice, operator)

    def _sign_in(self, user: str) -> httpx.Client:
        client = httpx.Client(base_url=self._url, verify=self._trust, timeout=SECONDS, trust_env=False)
        answer = client.get("/auth", auth=(user, self._site.passwords[user]))
        check(answer.status_code == 200, f"{user} can sign in")
        client.headers["Authorization"] = f"Bearer {answer.json()['token']}"
        return client

    def _who_may(self, alice: httpx.Client) -> None:
        heading("Who may")
        show("alice signed in at /auth with her password, and got a token for fifteen minutes.")
        answer = alice.get(PODS)
        names = [pod["metadata"]["name"] for pod in answer.json()["items"]]
        check(names == self._api.pods, "alice sees the pods")
        show(f"GET {PODS}")
        show(f"{answer.status_code}: {', '.join(names)}")
        check(self._api.seen[-1] == ("alice", PODS), "the API is told who asks")
        show("The API never saw her token: the gateway told it, under its own, that alice asks.")

    def _who_may_not(self, alice: httpx.Client, bob: httpx.Client) -> str:
        """Show both denials, and return the id of the second."""
        heading("Who may not, and why")
        reached = len(self._api.seen)
        hidden = bob.get(f"{PODS}/web-0")
        check(hidden.status_code == 404, "bob does not learn that the pod exists")
        show("bob may do nothing in that namespace, so he does not even learn what is there:")
        show(f"{hidden.status_code}: {hidden.json()['message']}")
        forbidden = alice.delete(f"{PODS}/web-0")
        check(forbidden.status_code == 403, "alice may not delete")
        show("alice may look and not delete, and is told so:")
        show(f"{forbidden.status_code}: {forbidden.json()['message']}")
        check(len(self._api.seen) == reached, "neither request reaches the API")
        show("Neither request reached the API.")
        return forbidden.headers["Audit-Id"]

    def _explain(self, operator: httpx.Client, decision: str) -> None:
        show("The operator, whom the policy allows it, asks why, by the Audit-Id of the answer:")
        token_file = self._site.token_file(operator.headers["Authorization"].removeprefix("Bearer "))
        asked = ["explain", decision, "--server", self._url, "--ca", str(self._site.authority)]
        command = [sys.executable, "-m", "ostiary_gateway", *asked, "--token-file", str(token_file)]
        done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=SECONDS)
        check('verb: the rule allows "get", "list", "watch" and not "delete"' in done.stdout, "the reason is known")
        show(f"$ ostiary-gateway {' '.join(asked[:4])} ...")
        for line in done.stdout.replace(f"{self._site.folder}/", "").splitlines():
            show(line)

    def _revocation(self, alice: httpx.Client, operator: httpx.Client) -> None:
        heading("A watch, and a revocation")
        watch = Watch(alice)
        self._api.add_pod("web-2")
        watch.wait_for("web-2")
        show(f"alice watches the pods: {', '.join(watch.names)}. The stream stays open.")
        began = time.monotonic()
        answer = operator.post(f"{OWN}/revocations", json={"type": "user", "value": "alice"})
        check(answer.status_code == 201, "the operator may revoke")
        watch.wait_for_end()
        show(f"The operator revokes alice; her stream is cut after {(watch.ended_at - began) * 1000:.0f} ms.")
        check(alice.get(PODS).status_code == 401, "her token is refused")
        show("401: her token is worth nothing any more, though it had minutes left.")


def show_audit(log: Path) -> None:
    """Show the audit log. The gateway has exited, so every event is on disk."""
    heading("What stays")
    events = [json.loads(line) for line in log.read_text().splitlines()]
    deletions = [event for event in events if (event["verb"], event["stage"]) == ("delete", "ResponseComplete")]
    check(len(deletions) == 1, "the deletion is recorded")
    deletion = deletions[0]
    check(deletion["annotations"]["authorization.k8s.io/decision"] == "forbid", "the refusal is recorded")
    show(f"{len(events)} audit events in the format of Kubernetes. The refused deletion:")
    show(json.dumps(_shortened(deletion)))


def _shortened(event: dict[str, Any]) -> dict[str, Any]:
    kept = {"auditID": event["auditID"], "verb": event["verb"], "user": event["user"]["username"]}
    return {**kept, "objectRef": event["objectRef"], "code": event["responseStatus"]["code"]}


def main() -> int:
    authority = trustme.CA()
    trust = ssl.create_default_context()
    authority.configure_trust(trust)
    api = SampleApi(authority)
    with api.running(), tempfile.TemporaryDirectory() as folder:
        site = Site(Path(folder), authority, api)
        try:
            with site.serving() as url:
                print(f"An API on {api.url}, and a gateway before it on {url}.")
                Demo(site, api, url, trust).run()
            show_audit(site.audit_log)
        except NotSo as error:
            print(f"\nThis is not so: {error}.", file=sys.stderr)
            return 1
    print("\nAll of this was one configuration file, two roles of a policy and `ostiary-gateway serve`.")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
