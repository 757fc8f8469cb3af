"""A provider is checked when it is loaded: what is missing, misspelt, or of another shape is told with its remedy."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import pytest

from ostiary.core.entry_points import list_entries
from ostiary.model import Attributes, Decision, UserInfo, Verdict
from ostiary_gateway import catalog
from ostiary_gateway.contract_violations import flaws
from ostiary_gateway.interfaces.identity import LoginRequest, SignIn


class Identity:
    async def handle_client(self, request: LoginRequest) -> UserInfo:
        return UserInfo("alice")

    async def handle_provider(self, request: LoginRequest) -> UserInfo:
        return UserInfo("alice")


class Authorization:
    async def authorize(self, attributes: Attributes) -> Decision:
        return Decision(Verdict.NO_OPINION)

    async def relevant_groups(self) -> frozenset[str]:
        return frozenset()


def with_members(base: type, **members: object) -> Any:
    return type("Acme", (base,), members)()


def messages(plugin_type: str, provider: object) -> list[str]:
    return [flaw.message for flaw in flaws(plugin_type, provider)]


async def one_user(self: object, user: UserInfo) -> UserInfo:
    return user


def test_the_bundled_providers_have_none(subtests: pytest.Subtests) -> None:
    for plugin_type, name in [(entry.type, entry.name) for each in catalog.TYPES for entry in list_entries(each)]:
        with subtests.test(plugin_type=plugin_type, name=name):
            library = {"kerberos": "gssapi", "ldap": "ldap"}.get(name)
            if library is not None:
                pytest.importorskip(library, reason=f"missing: {library}")
            assert flaws(plugin_type, catalog.load(plugin_type, name)) == ()


def test_a_whole_provider_has_none() -> None:
    assert flaws("identity", with_members(Identity, revalidate=one_user, sign_in=SignIn.PASSWORD)) == ()


def test_a_misspelt_ability_is_told_with_the_right_spelling() -> None:
    (flaw,) = flaws("identity", with_members(Identity, revalidates=one_user))
    assert flaw.message == "Acme.revalidates is not an ability of the gateway's providers"
    assert flaw.hint is not None
    assert flaw.hint.startswith("did you mean revalidate?")


def test_a_misspelt_trait_is_told() -> None:
    (flaw,) = flaws("identity", with_members(Identity, return_by_post=True))
    assert flaw.hint is not None
    assert flaw.hint.startswith("did you mean returns_by_post?")


def test_a_misspelt_name_in_the_instance_is_told() -> None:
    provider = Identity()
    provider.signin = SignIn.PASSWORD  # type: ignore[attr-defined]
    assert messages("identity", provider) == ["Identity.signin is not an ability of the gateway's providers"]


def test_a_misspelt_method_of_the_contract_is_told() -> None:
    async def handle(self: object, request: LoginRequest) -> UserInfo:
        return UserInfo("alice")

    (flaw,) = flaws("identity", type("Acme", (), {"handle_client": handle, "handle_providers": handle})())
    assert (flaw.message, flaw.hint) == (
        "it has no handle_provider",
        "did you mean handle_provider by handle_providers?",
    )


def test_other_names_are_left_alone(subtests: pytest.Subtests) -> None:
    """Private ones, other words, and what means something in a provider of another type."""
    for name in ["_revalidates", "validate", "prove", "sessions", "groups_of", "decide", "from_config"]:
        with subtests.test(name=name):
            assert flaws("identity", with_members(Identity, **{name: one_user})) == ()


def test_a_near_name_beside_the_ability_itself_is_left_alone() -> None:
    assert flaws("identity", with_members(Identity, revalidate=one_user, revalidates=one_user)) == ()


def test_a_value_is_not_taken_for_a_misspelt_method() -> None:
    assert flaws("identity", with_members(Identity, closed=False, probes=3)) == ()


@pytest.mark.parametrize(
    ("method", "message"),
    [
        (lambda self, user: user, "Acme.revalidate is not async"),
        ("soon", "Acme.revalidate is not a method"),
    ],
)
def test_an_ability_of_another_kind_is_told(method: object, message: str) -> None:
    (flaw,) = flaws("identity", with_members(Identity, revalidate=method))
    assert (flaw.message, flaw.hint) == (message, "define it as: async def revalidate(self, user)")


def test_a_method_that_is_called_without_waiting_must_not_be_async() -> None:
    async def decide(self: object, attributes: Attributes) -> Decision:
        return Decision(Verdict.ALLOW)

    (flaw,) = flaws("authorization", with_members(Authorization, decide=decide))
    assert flaw.message == "Acme.decide is async, and is called without waiting"
    assert flaw.hint == "define it as: def decide(self, attributes)"


async def without_arguments(self: object) -> None: ...
async def with_one_more(self: object, user: UserInfo, more: str) -> None: ...
async def by_name_only(self: object, *, user: UserInfo) -> None: ...


@pytest.mark.parametrize("method", [without_arguments, with_one_more, by_name_only])
def test_other_arguments_than_those_of_the_contract_are_told(method: object) -> None:
    assert messages("identity", with_members(Identity, revalidate=method)) == [
        "Acme.revalidate cannot be called with the arguments of its contract"
    ]


async def with_another_name(self: object, person: UserInfo) -> None: ...
async def with_a_default(self: object, user: UserInfo, more: str = "") -> None: ...
async def with_any(self: object, *arguments: object, **named: object) -> None: ...


@pytest.mark.parametrize("method", [with_another_name, with_a_default, with_any])
def test_arguments_that_fit_are_enough(method: object) -> None:
    assert flaws("identity", with_members(Identity, revalidate=method)) == ()


def test_the_methods_of_the_contract_are_checked_as_well() -> None:
    assert messages("identity", with_members(Identity, handle_client=without_arguments)) == [
        "Acme.handle_client cannot be called with the arguments of its contract"
    ]


def test_a_function_that_says_it_returns_an_awaitable_is_as_good_as_async() -> None:
    def revalidate(self: object, user: UserInfo) -> Awaitable[UserInfo]:
        return one_user(self, user)

    assert flaws("identity", with_members(Identity, revalidate=revalidate)) == ()


def test_a_decorated_method_counts_as_what_it_wraps() -> None:
    def decorate(method: Callable[..., Coroutine[Any, Any, UserInfo]]) -> Callable[..., object]:
        @functools.wraps(method)
        def call(*arguments: object) -> object:
            return method(*arguments)

        return call

    assert flaws("identity", with_members(Identity, revalidate=decorate(one_user))) == ()


def test_a_trait_that_is_no_bool_is_told() -> None:
    (flaw,) = flaws("identity", with_members(Identity, proves_nothing="no"))
    assert (flaw.message, flaw.hint) == ("Acme.proves_nothing is a str", "make it True or False")


def test_a_value_of_another_type_is_told() -> None:
    (flaw,) = flaws("identity", with_members(Identity, sign_in="password"))
    assert (flaw.message, flaw.hint) == ("Acme.sign_in is a str", "make it a SignIn")


def test_an_ability_in_parts_is_told() -> None:
    store = type("Acme", (catalog.load("token_store", "memory"),), {"take_record": None})()
    (flaw,) = flaws("token_store", store)
    assert flaw.message == "it has put_record and find_record, but no take_record"


def test_a_property_is_left_for_when_it_is_needed() -> None:
    def fail(self: object) -> int:
        raise OSError("not now")

    assert flaws("authorization", with_members(Authorization, revision=property(fail))) == ()
