"""API plugins in the gateway's own API, below ``/apis/ostiary.dev/v1``.

    GET    apiplugins             POST: register
    GET    apiplugins/<name>      DELETE: remove        the name is that of the upstream, a dot, and the group

Served by `admin_api`. The engine has authorized a request before it gets here: whoever may *create* ``apiplugins`` says
which server gets the requests to a group.
"""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from ostiary.gateway.doors.accounts_api import answering
from ostiary.gateway.doors.api_plugins.registrations import Registrations
from ostiary.gateway.upstream.api_plugins.watching import WatchedPlugin
from ostiary.wire.ostiary_dev.accounts import list_json, time_text
from ostiary.wire.ostiary_dev.api_plugins import KIND, decode_plugin_request
from ostiary.wire.ostiary_dev.operators import API_VERSION, PREFIX, decode_body


class ApiPluginsApi:
    def __init__(self, registrations: Registrations) -> None:
        self._registrations = registrations
        path = f"{PREFIX}/apiplugins"
        self.routes = [
            Route(path, answering(self._list), methods=["GET"]),
            Route(path, answering(self._register), methods=["POST"]),
            Route(f"{path}/{{name}}", answering(self._show), methods=["GET"]),
            Route(f"{path}/{{name}}", answering(self._remove), methods=["DELETE"]),
        ]

    async def _list(self, request: Request) -> Response:
        query = request.query_params
        if request.state.info.verb != "list" or query.get("labelSelector") or query.get("fieldSelector"):
            raise ValueError("API plugins can only be listed, all of them: without selector or watch")
        items = [plugin_json(each) for each in self._registrations.list()]
        return JSONResponse(list_json(f"{KIND}List", items))

    async def _register(self, request: Request) -> Response:
        wanted = decode_plugin_request(decode_body(await request.body()))
        watched = await self._registrations.register(wanted, by=str(request.state.user.username))
        return JSONResponse(plugin_json(watched), status_code=201)

    async def _show(self, request: Request) -> Response:
        return JSONResponse(plugin_json(self._registrations.get(request.path_params["name"])))

    async def _remove(self, request: Request) -> Response:
        name = request.path_params["name"]
        await self._registrations.remove(name)
        return JSONResponse({"kind": "Status", "apiVersion": "v1", "metadata": {"name": name}, "status": "Success"})


def plugin_json(watched: WatchedPlugin) -> dict[str, object]:
    plugin = watched.plugin
    metadata: dict[str, object] = {"name": plugin.name}
    if plugin.created_at is not None:
        metadata["creationTimestamp"] = time_text(plugin.created_at)
    if plugin.version is not None:
        metadata["resourceVersion"] = str(plugin.version)
    pins = plugin.pins if plugin.tls is None else plugin.tls.pins
    return {
        "kind": KIND,
        "apiVersion": API_VERSION,
        "metadata": metadata,
        "spec": {
            "upstream": plugin.upstream,
            "group": plugin.group,
            "versions": list(plugin.versions),
            "server": plugin.server,
            "health": plugin.health or "",
            "ca": plugin.authorities_pem,
            "pins": sorted(pins),
            "serverName": plugin.server_name,
        },
        # As the worker that answers sees it.
        "status": {
            "available": watched.is_available,
            "message": watched.trouble,
            "source": "configuration" if plugin.is_declared else "api",
            "createdBy": plugin.created_by,
        },
    }
