"""A program that tells everything it knows: all logs at DEBUG, every repr, every traceback, on its stdout.

Run by the canary test as ``python -m tests.support.canary_program ADAPTER=KUBECONFIG...``.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import sys
import traceback
import warnings
from typing import Any

import ostiary

PATH = "/api/v1/namespaces/default/pods"


def show(what: object) -> None:
    print(repr(what))
    for holder in (what, getattr(what, "__dict__", {})):
        print(str(holder))


def through_httpx(connection: ostiary.Connection) -> None:
    with connection.httpx() as client:
        answer = client.get(PATH)
        show((client, answer, answer.request, answer.history))


def through_requests(connection: ostiary.Connection) -> None:
    with connection.requests() as session:
        show((session, session.get(PATH), dict(session.headers)))


def through_urllib3(connection: ostiary.Connection) -> None:
    pool = connection.urllib3()
    show((pool, pool.request("GET", PATH)))
    pool.clear()


def through_kubernetes(connection: ostiary.Connection) -> None:
    from kubernetes.client import CoreV1Api

    api = CoreV1Api(connection.kubernetes())
    show((api, api.list_namespaced_pod("default").metadata))


def through_aiohttp(connection: ostiary.Connection) -> None:
    async def main() -> None:
        async with connection.aiohttp() as session, session.get(PATH) as answer:
            show((session, answer.status, await answer.read()))

    asyncio.run(main())


def through_credential(connection: ostiary.Connection) -> None:
    source: Any = connection.source
    credential = source.get()
    show((credential, credential.token, credential.certificate, source, source.plugin, source.plugin.plan()))


ADAPTERS = {name.removeprefix("through_"): call for name, call in globals().items() if name.startswith("through_")}


def main() -> None:
    logging.basicConfig(level=logging.DEBUG, stream=sys.stdout)
    warnings.simplefilter("always")
    for argument in sys.argv[1:]:
        adapter, _, kubeconfig = argument.partition("=")
        print(f"began {argument}")
        try:
            connection = ostiary.connect(kubeconfig)
            show(connection)
            show(connection.selection)
            ADAPTERS[adapter](connection)
            print(f"finished {argument}")
        except Exception as error:
            show(error)
            print(traceback.format_exc())
        gc.collect()


if __name__ == "__main__":
    main()
