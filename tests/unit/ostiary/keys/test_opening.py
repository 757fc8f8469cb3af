"""From an address to a key: schemes, the policy, PINs and which of them are tried."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ostiary.client.exec.device_keys import open_device_key
from ostiary.client.exec.policy import AllowAll, Allowlist, DenyAll
from ostiary.errors import ConfigurationError, KeyUnusable, PinNeeded, PinWrong, PluginRefused
from ostiary.keys.address import KeyAddress, is_address, parse_address, read_address
from ostiary.keys.opening import (
    NO_PIN,
    OpeningRules,
    WrongPins,
    _Opener,
    check_address,
    open_key,
    pin_file,
    read_pin_file,
)
from ostiary.model import DeviceKey, Secret
from tests.support.device_keys.handshake import MemoryKey
from tests.unit.ostiary.keys.test_held_key import PRIVATE

ADDRESS = KeyAddress("test:card")


class Card:
    """A device with a PIN, which counts how often it was given one."""

    program: tuple[str, ...] = ()

    def __init__(self, pin: str = "1234", pin_source: str = "", *, tells: bool = True) -> None:
        self._pin, self.pin_source, self._tells = pin, pin_source, tells
        self.tried: list[str | None] = []

    def open(self, *, executable: str, pin: Secret | None, asked: bool) -> DeviceKey:
        if pin is None and self._tells:
            raise PinNeeded("a PIN", label="card")
        self.tried.append(None if pin is None else pin.reveal())
        if pin is None or pin.reveal() != self._pin:
            raise PinWrong("wrong")
        return MemoryKey(PRIVATE)


def opener(card: Card, **rules: object) -> _Opener:
    rules = {"environ": {}, "wrong": WrongPins(), **rules}
    return _Opener(ADDRESS, card, "", OpeningRules(**rules), card.pin_source)  # type: ignore[arg-type]


def test_the_pin_of_the_environment_is_used_and_nobody_is_asked() -> None:
    asked: list[str] = []
    card = Card()
    opener(card, environ={"OSTIARY_KEY_PIN": "1234"}, ask=asked.append).open()
    assert (card.tried, asked) == (["1234"], [])


def test_a_person_is_asked_for_the_pin_of_this_device() -> None:
    asked: list[str] = []

    def ask(label: str) -> Secret:
        asked.append(label)
        return Secret("1234")

    opener(Card(), ask=ask).open()
    assert asked == ["card"]


def test_a_wrong_pin_is_given_to_the_device_once_until_it_changes(tmp_path: Path) -> None:
    pin = tmp_path / "pin"
    pin.write_text("0000\n")
    card = Card(pin_source=str(pin))
    opening = opener(card)
    for _ in range(5):
        with pytest.raises(PinWrong) as error:
            opening.open()
    assert card.tried == ["0000"]
    assert "0000" not in str(error.value)
    pin.write_text("1234\n")
    assert opening.open()
    assert card.tried == ["0000", "1234"]


def test_a_device_that_cannot_tell_whether_it_has_a_pin_is_tried_once_without() -> None:
    card = Card(tells=False)
    opening = opener(card)
    for _ in range(3):
        with pytest.raises(PinNeeded):
            opening.open()
    assert card.tried == [None]


def test_without_anybody_to_ask_the_error_says_what_to_set() -> None:
    with pytest.raises(PinNeeded) as error:
        opener(Card()).open()
    assert "OSTIARY_KEY_PIN" in str(error.value)
    assert error.value.code == "key-pin-needed"


@pytest.mark.parametrize("text", ["1234", "1234\n", "1234\r\n"])
def test_the_line_break_at_the_end_of_a_file_is_not_of_the_pin(tmp_path: Path, text: str) -> None:
    (tmp_path / "a pin").write_text(text)
    for source in ("a pin", str(tmp_path / "a pin"), f"file:{tmp_path}/a%20pin", "file:a%20pin"):
        assert read_pin_file(pin_file(source, tmp_path)).reveal() == "1234"


@pytest.mark.parametrize("source", ["/nowhere/pin", "file://another-machine/pin", "/dev/zero", "pipe", "a\0b"])
def test_a_pin_file_that_cannot_be_used_is_told(source: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(KeyUnusable):
        read_pin_file(pin_file(source, tmp_path))


@pytest.mark.parametrize("address", ["tpm2:handle:0x81000001?pin-source=pin", "pkcs11:object=a?pin-source=pin"])
def test_a_file_is_no_pin_where_the_policy_denies_everything(tmp_path: Path, address: str) -> None:
    (tmp_path / "pin").write_text("1234")
    with pytest.raises(PluginRefused, match=str(tmp_path / "pin")):
        open_device_key(KeyAddress(address, tmp_path), policy=DenyAll(), may_ask=False)


class TestAddresses:
    @pytest.mark.parametrize("text", ["pkcs11:object=a", "tpm2:handle:0x81000001", "exec:sign", "x-y:z"])
    def test_what_begins_with_a_scheme_is_an_address(self, text: str) -> None:
        assert is_address(text)
        assert str(parse_address(text)) == text

    def test_what_does_not_is_a_file(self, subtests: pytest.Subtests) -> None:
        for text in ["server.key", "/etc/tls/a:b.key", "./pkcs11:x", "c:\\key.pem", "", ":x"]:
            with subtests.test(text=text):
                assert not is_address(text)

    @given(st.text(max_size=100))
    def test_every_text_is_a_file_or_an_address_or_refused_with_a_sentence(self, text: str) -> None:
        try:
            address = parse_address(text)
        except ValueError:
            return
        assert f"{address.scheme}:{address.rest}" == text

    def test_an_address_that_no_plugin_can_read_is_told_with_its_code(self, subtests: pytest.Subtests) -> None:
        for text in ["nosuch:thing", "pkcs11:", "tpm2:handle:1", "tpm2:file:", "exec:", "exec:'"]:
            with subtests.test(text=text):
                with pytest.raises(ConfigurationError) as error:
                    check_address(text)
                assert error.value.code == "key-address-invalid"

    def test_a_line_break_is_refused(self) -> None:
        with pytest.raises(ConfigurationError, match="cannot be read"):
            read_address("exec:a\nb")


def test_the_policy_is_asked_before_a_command_of_an_address_runs(tmp_path: Path) -> None:
    (tmp_path / "signer").write_text(f"#!/bin/sh\ntouch {tmp_path}/ran\n")
    (tmp_path / "signer").chmod(0o755)
    judged: list[tuple[str, ...]] = []

    def refuse(program: tuple[str, ...]) -> str:
        judged.append(program)
        raise PluginRefused("no")

    with pytest.raises(PluginRefused):
        open_key(KeyAddress("exec:./signer --slot 1", tmp_path), OpeningRules(judge=refuse))
    assert judged == [(str(tmp_path / "signer"), "--slot", "1")]
    assert not (tmp_path / "ran").exists()


def test_a_command_that_is_not_on_path_is_not_run_from_the_current_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "no-such-signer").write_text(f"#!/bin/sh\ntouch {tmp_path}/ran\n")
    (tmp_path / "no-such-signer").chmod(0o755)
    monkeypatch.chdir(tmp_path)
    said = "there is no command 'no-such-signer' on PATH"
    with pytest.raises(KeyUnusable, match=said) as error:
        open_key("exec:no-such-signer")
    assert error.value.code == "key-not-found"
    for policy in (AllowAll(), Allowlist(["no-such-signer"])):
        with pytest.raises(KeyUnusable, match=said):
            open_device_key("exec:no-such-signer", policy=policy, may_ask=False)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("is_told", [True, False], ids=["it tells", "a TPM handle"])
def test_a_wrong_pin_of_the_environment_is_tried_once_however_often_the_key_is_opened(*, is_told: bool) -> None:
    card = Card(tells=is_told)
    wrong = WrongPins()
    for _ in range(4):
        with pytest.raises(PinWrong):
            opener(card, environ={"OSTIARY_KEY_PIN": "bad"}, wrong=wrong).open()
    assert card.tried == (["bad"] if is_told else ["bad", None])
    opener(card, environ={"OSTIARY_KEY_PIN": "1234"}, wrong=wrong).open()
    with pytest.raises(PinNeeded):
        opener(card, wrong=wrong).open()
    assert card.tried.count(None) == (0 if is_told else 1), "the try without a PIN is not forgotten by a success"


def test_a_right_pin_of_the_environment_costs_a_tpm_no_try() -> None:
    card = Card(tells=False)
    opener(card, environ={"OSTIARY_KEY_PIN": "1234"}).open()
    assert card.tried == ["1234"]


def test_many_wrong_pins_are_remembered_up_to_a_bound() -> None:
    wrong = WrongPins()
    wrong.remember("card", NO_PIN)
    for number in range(1000):
        wrong.remember("card", Secret(str(number)))
    assert wrong.is_wrong("card", NO_PIN)
    assert wrong.is_wrong("card", Secret("999"))
    assert not wrong.is_wrong("card", Secret("0"))
    wrong.forget_pins("card")
    assert (wrong.is_wrong("card", NO_PIN), wrong.is_wrong("card", Secret("999"))) == (True, False)
