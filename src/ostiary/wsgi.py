"""The middleware for WSGI applications that check tokens and policy themselves: Flask, Django.

    app.wsgi_app = ostiary.wsgi.GatekeeperMiddleware(app.wsgi_app, "backend.yaml")

docs/how-to/protect-a-python-api.md has the line for each framework.
"""

from ostiary.backend.wsgi_middleware import WsgiGatekeeper as GatekeeperMiddleware

__all__ = ["GatekeeperMiddleware"]
