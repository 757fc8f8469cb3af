"""A browser at a web application, which a step-up rule is about: it is led to sign in with more, and back."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from pathlib import Path

from ostiary_gateway.config.provider import Identity
from ostiary_gateway.config.step_up import StepUpRuleSettings, StepUpSettings
from tests.support.http1 import upstream
from tests.support.visitor import GATEWAY, Visitor
from tests.unit.ostiary_gateway.proxy.applications import WIKI, application, noting
from tests.unit.ostiary_gateway.proxy.gateways import at, configured, serving
from tests.unit.ostiary_gateway.proxy.people import Asks

ADMIN = StepUpRuleSettings(name="admin", paths=("/admin", "/admin/*"), amr=("mfa",), max_age=timedelta(minutes=15))


async def test_a_page_leads_to_the_sign_in_and_back_and_scripts_are_told(tmp_path: Path) -> None:
    provider = Asks(amr=("pwd",))
    async with upstream(noting) as made:
        config = configured(tmp_path, at(made), externalURL=GATEWAY, upstreams=[application(at(made), "wiki")])
        config = replace(config, identity=(Identity("me", "asks", provider),), step_up=StepUpSettings(rules=(ADMIN,)))
        async with serving(config) as gateway:
            provider.clock = gateway.clock
            visitor = Visitor(gateway.port)
            assert (await visitor.open(f"{WIKI}/")).status == 200
            assert provider.required == [None]

            script = await visitor.ask(f"{WIKI}/admin/users", "Accept: */*", "Sec-Fetch-Mode: cors")
            assert (script.status, script.one("X-Ostiary-Sign-In")) == (401, b"required")
            assert b"insufficient_user_authentication" in (script.one("WWW-Authenticate") or b"")

            # Whoever proves no more is told so, and not asked again and again.
            refused = await visitor.open(f"{WIKI}/admin/users")
            assert refused.status == 403
            assert b"did not confirm the sign-in that this needs" in refused.body
            assert provider.required == [None, ADMIN.required]

            provider.amr = ("pwd", "mfa")
            assert (await visitor.open(f"{WIKI}/admin/users?page=2")).status == 200
            assert made.requests[-1].target == b"/admin/users?page=2"
            assert (await visitor.open(f"{WIKI}/admin")).status == 200
            assert provider.required == [None, ADMIN.required, ADMIN.required]
            gateway.clock.advance(901)
            await visitor.open(f"{WIKI}/admin")
            assert len(provider.required) == 4
