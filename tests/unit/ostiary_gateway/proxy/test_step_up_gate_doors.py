"""A proxy that asks about a request which a step-up rule is about: it is told at once, and nothing waits for it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from ostiary_gateway.config.provider import Identity
from ostiary_gateway.config.step_up import StepUpRuleSettings, StepUpSettings
from tests.unit.ostiary_gateway.extauth.test_forward_auth import SECRET, UPSTREAMS, ask
from tests.unit.ostiary_gateway.proxy.gateways import ImmediatePolicy, configured, serving
from tests.unit.ostiary_gateway.proxy.people import Asks, held, prove


async def test_a_proxy_gets_its_401_at_once_and_a_yes_once_it_is_proved(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text(SECRET)
    entries = [{"name": "nginx", "proxy": "nginx", "callers": {"tokenFile": "secret"}}]
    config = configured(tmp_path, "", ImmediatePolicy(), upstreams=UPSTREAMS, doors=entries)
    rule = StepUpRuleSettings(name="admin", paths=("/admin",), upstreams=("shop",), amr=("mfa",))
    config = replace(config, identity=(Identity("me", "asks", Asks()),), step_up=StepUpSettings(rules=(rule,)))
    async with serving(config) as site:
        assert (await ask(site)).status == 200
        refused = await ask(site, "/admin")
        assert (refused.status, held(site)) == (401, 0)
        assert b"insufficient_user_authentication" in (refused.one("WWW-Authenticate") or b"")
        await prove(site, "mfa")
        assert (await ask(site, "/admin")).status == 200
