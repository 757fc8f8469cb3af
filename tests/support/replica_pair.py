"""Two replicas in processes of their own over one token store, and a browser that goes to both.

with replicas.serving(limits={...}) as (one, other): ...
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import trustme

from tests.support.cluster import Cluster
from tests.support.gateway import SECONDS, ServedGateway, Site, password, role

# What people would type: both replicas are behind it.
EXTERNAL_URL = "https://gateway.example"
PODS = "/api/v1/namespaces/team/pods"
HTML = {"Accept": "text/html"}


class Replicas:
    """Each has its folder and its configuration. Alice and Bob may read the pods of a cluster that both have."""

    def __init__(self, folder: Path, ca: trustme.CA, store: dict[str, Any]) -> None:
        self._sites = [Site(folder / name, ca) for name in ("one", "other")]
        self._ca, self._store = ca, store
        for site in self._sites:
            site.users("alice", "bob")
            site.policy(role("team", "pods", User="alice"), role("team", "pods", User="bob"))
            # What is hashed with a random salt must be the same for both.
            (site.folder / "users").write_text((self._sites[0].folder / "users").read_text())

    @contextmanager
    def serving(self, **sections: Any) -> Iterator[list[ServedGateway]]:
        with ExitStack() as stack:
            cluster = stack.enter_context(Cluster(self._ca))
            cluster.add_namespace("team")
            sections |= {"store": self._store, "externalURL": EXTERNAL_URL}
            gateways = [
                stack.enter_context(site.serving(upstreams=[site.impersonating(cluster)], **sections))
                for site in self._sites
            ]
            for gateway in gateways:
                wait_until(partial(_is_ready, gateway))
            yield gateways


def _is_ready(gateway: ServedGateway) -> bool:
    return gateway.probe("/readyz").status_code == 200


def wait_until(is_so: Callable[[], bool]) -> None:
    until = time.monotonic() + SECONDS
    while not is_so():
        assert time.monotonic() < until, "it never came true"


def sign_in_as_a_browser(gateway: ServedGateway) -> dict[str, str]:
    """The header with the cookies of a browser that has signed in."""
    with gateway.http() as http:
        answer: httpx.Response = http.post(
            "/auth", data={"username": "alice", "password": password("alice")}, headers=HTML
        )
        assert answer.status_code == 303, answer.text
        cookies = [value.partition(";")[0] for value in answer.headers.get_list("set-cookie")]
        return {"Cookie": "; ".join(cookie for cookie in cookies if not cookie.endswith("="))}
