"""A Django project of one module: carts, as the other frameworks of the tests have them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ostiary_gateway.middleware import AccessRefused


class AnswerRefusals:
    """As docs/how-to/protect-a-python-api.md has it: Django catches what a view raises before the middleware can."""

    def __init__(self, get_response: Callable[[Any], Any]) -> None:
        self.get_response = get_response

    def __call__(self, request: Any) -> Any:
        return self.get_response(request)

    def process_exception(self, request: Any, error: Exception) -> Any:
        from django.http import HttpResponse

        if isinstance(error, AccessRefused):
            return HttpResponse(error.body, status=error.status, headers=dict(error.headers))
        return None


def cart(request: Any, namespace: str, name: str) -> Any:
    from django.http import JsonResponse

    user = request.META["ostiary.user"]
    return JsonResponse({"user": user.username, "groups": user.groups})


def restart(request: Any, namespace: str, name: str) -> Any:
    from django.http import JsonResponse

    request.META["ostiary"].require("restart", resource="carts", namespace=namespace, name=name)
    return JsonResponse({"user": request.META["ostiary.user"].username})


urlpatterns: list[Any] = []


def application() -> Any:
    """The WSGI application; the settings of Django are those of the process, so they are made once."""
    from django.conf import settings
    from django.core.wsgi import get_wsgi_application
    from django.urls import path
    from django.views.decorators.csrf import csrf_exempt

    if not settings.configured:
        settings.configure(
            ROOT_URLCONF=__name__,
            ALLOWED_HOSTS=["*"],
            SECRET_KEY="for tests",
            MIDDLEWARE=[f"{__name__}.AnswerRefusals"],
        )
        urlpatterns.extend(
            [
                path("v1/<namespace>/carts/<name>", cart),
                path("v1/<namespace>/carts/<name>/restart", csrf_exempt(restart)),
            ]
        )
    return get_wsgi_application()
