"""Cases of client-go's own tests that need a server.

TestRoundTripper, TestTLSCredentials, TestExecTLSCache, TestConcurrentUpdateTransportConfig, authentication.sh.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta

import httpx
import pytest
import trustme

from ostiary.client.connection import Connection
from ostiary.errors import AnswerInvalid, ConfigurationError, PluginNotInteractive
from ostiary.kubeconfig import Overrides
from ostiary.model import Secret
from ostiary_gateway.testing import FakeClock
from tests.support.apiserver import ApiServer
from tests.support.plugins import PluginScript, exec_user

Connect = Callable[..., Connection]
Issue = Callable[[str], tuple[str, str]]


def test_round_tripper(api: ApiServer, plugin: PluginScript, connect_to: Connect, clock: FakeClock) -> None:
    """A token serves until the server wants another one, or until it expires; as client-go, without our retry.

    E1, E12, E44, E51.
    """
    with connect_to(retry_on_401=False).httpx() as client:

        def get() -> int:
            return client.get("/version").status_code

        api.rules.tokens = {"token1"}
        plugin.answer(token="token1")
        assert get() == 200
        plugin.answer(token="token2")
        assert get() == 200, "the cached token1 is still good"
        api.rules.tokens = {"token2"}
        assert [get(), get()] == [401, 200]
        plugin.answer(token="token3", expires_at=clock.now() + timedelta(hours=1))
        api.rules.tokens = {"token3"}
        assert [get(), get()] == [401, 200]
        plugin.answer(token="token4", expires_at=clock.now() + timedelta(hours=3))
        api.rules.tokens = {"token4"}
        clock.advance(hours=2)
        assert get() == 200, "expiry is noticed without a 401"
    assert plugin.runs == 4


def test_tls_credentials(
    api: ApiServer, plugin: PluginScript, connect_to: Connect, clock: FakeClock, client_certificate: Issue
) -> None:
    """A certificate of another authority fails the handshake; the next good one works again, same client.

    E1, E48, F25.
    """
    api.rules.certificates = {"dev"}
    stranger = trustme.CA().issue_cert("dev@example.test", common_name="dev")
    strange = (stranger.cert_chain_pems[0].bytes().decode(), stranger.private_key_pem.bytes().decode())
    with connect_to().httpx() as client:
        for (certificate, key), good in (
            (client_certificate("dev"), True),
            (strange, False),
            (client_certificate("dev"), True),
        ):
            plugin.answer(certificate=certificate, key=key, expires_at=clock.now() + timedelta(hours=1))
            if good:
                assert client.get("/version").status_code == 200
            else:
                with pytest.raises(httpx.TransportError):
                    client.get("/version")
            clock.advance(hours=2)


def test_intermediate_certificates_are_sent_too(
    api: ApiServer, plugin: PluginScript, connect_to: Connect, ca: trustme.CA, clock: FakeClock
) -> None:
    """E49."""
    api.rules.certificates = {"dev"}
    leaf = ca.create_child_ca().issue_cert("dev@example.test", common_name="dev")
    parts = [pem.bytes().decode() for pem in leaf.cert_chain_pems]
    key = leaf.private_key_pem.bytes().decode()
    assert len(parts) == 2
    plugin.answer(certificate="".join(parts), key=key, expires_at=clock.now() + timedelta(hours=1))
    with connect_to().httpx() as client:
        assert client.get("/version").status_code == 200
        assert api.requests[-1].certificate == "dev"
        # The server trusts the root alone: without the intermediate one it cannot verify the leaf.
        plugin.answer(certificate=parts[0], key=key)
        clock.advance(hours=2)
        with pytest.raises(httpx.TransportError):
            client.get("/version")


def test_exec_tls_cache(plugin: PluginScript, connect_to: Connect) -> None:
    """One connection has one context for all its clients; the same configuration shares its credential. E20."""
    connection, again = connect_to(), connect_to()
    assert connection.ssl_context() is connection.ssl_context()
    assert connection.source is again.source
    assert connect_to(user=exec_user(plugin.path, args=["extra"])).source is not connection.source


def test_many_threads_may_make_clients_of_one_connection(
    api: ApiServer, plugin: PluginScript, connect_to: Connect
) -> None:
    connection = connect_to()
    ready, statuses = threading.Barrier(16), []

    def work() -> None:
        ready.wait(30)
        with connection.httpx() as client:
            statuses.append(client.get("/version").status_code)

    threads = [threading.Thread(target=work) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert statuses == [200] * 16
    assert plugin.runs == 1


# --- authentication.sh ---


@pytest.mark.parametrize(
    "overrides",
    [Overrides(token=Secret("flag")), Overrides(username="u", password=Secret("p"))],
    ids=["--token", "--username and --password"],
)
def test_what_the_caller_gives_beats_the_plugin(
    api: ApiServer, plugin: PluginScript, connect_to: Connect, overrides: Overrides
) -> None:
    """E27."""
    with connect_to(overrides=overrides).httpx() as client:
        client.get("/version")
    assert plugin.runs == 0
    assert (api.requests[0].headers.get("Authorization", "")).split()[0] in ("Bearer", "Basic")


def test_a_command_that_is_no_plugin_is_told_apart(connect_to: Connect) -> None:
    with (
        connect_to(user=exec_user("ls")).httpx() as client,
        pytest.raises(AnswerInvalid, match=r"neither JSON nor YAML|not one JSON"),
    ):
        client.get("/version")


def test_a_missing_interactive_mode_is_an_error_in_v1_and_means_if_available_in_v1beta1(
    plugin: PluginScript, connect_to: Connect
) -> None:
    with pytest.raises(ConfigurationError, match="interactiveMode"):
        connect_to(user=exec_user(plugin.path, mode=None))
    plugin.answer(token="t", version="v1beta1")
    with connect_to(user=exec_user(plugin.path, version="v1beta1", mode=None)).httpx() as client:
        assert client.get("/version").status_code == 200


def test_a_program_that_reads_stdin_keeps_plugins_away_from_it_and_the_error_says_why(
    plugin: PluginScript, connect_to: Connect, terminal: int
) -> None:
    """E26."""
    reason = "used by stdin resource manifest reader"
    connection = connect_to(user=exec_user(plugin.path, mode="Always"), stdin_unavailable=reason)
    with connection.httpx() as client, pytest.raises(PluginNotInteractive, match=reason):
        client.get("/version")
    assert plugin.runs == 0
