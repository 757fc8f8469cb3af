"""The middleware for ASGI applications that check tokens and policy themselves: Starlette, FastAPI, Django.

    app.add_middleware(ostiary.asgi.GatekeeperMiddleware, gatekeeper="backend.yaml")

docs/how-to/protect-a-python-api.md has the line for each framework.
"""

from ostiary.backend.asgi_middleware import AsgiGatekeeper as GatekeeperMiddleware

__all__ = ["GatekeeperMiddleware"]
