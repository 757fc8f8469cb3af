"""How the gateway is asked: by whom, and with which certificates."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import trustme

from ostiary.errors import ProviderError
from ostiary_gateway.middleware.config import loads
from ostiary_gateway.middleware.gateway_client import GatewayQuestions
from ostiary_gateway.testing import FakeClock
from tests.support.scripted_gateway import ScriptedGateway


async def test_an_authority_that_is_exchanged_counts_from_then_on(tmp_path: Path) -> None:
    """Certificates are renewed in place; an API is not restarted for that."""
    ca, other = trustme.CA(), trustme.CA()
    other.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    with ScriptedGateway(ca).running() as gateway:
        settings = gateway.settings(tmp_path, gateway={"tls": {"ca": "ca.pem"}})
        clock = FakeClock()
        questions = GatewayQuestions(loads(json.dumps(settings), directory=tmp_path).gateway, clock)
        token = gateway.add("ann")
        with pytest.raises(ProviderError) as caught:
            await questions.describe(token)
        assert "its certificate is not trusted" in str(caught.value.cause)
        (tmp_path / "ca.pem").write_text("in the middle of being written")
        clock.advance(2)
        with pytest.raises(ProviderError):
            await questions.describe(token)
        ca.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
        clock.advance(2)
        description = await questions.describe(token)
        assert description is not None
        assert description.user.username == "ann"
        await questions.close()
