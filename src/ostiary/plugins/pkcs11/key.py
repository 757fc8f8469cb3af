"""A key in a token: finds the one token and the one key that the URI names, and has it sign.

Called in the one thread of the key (`core/keys/held_key.py`). Its library is loaded into this process, as every
PKCS#11 library is; what the library does with the key is its own affair.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Self

import pkcs11
from pkcs11 import Attribute, KeyType, ObjectClass
from pkcs11 import exceptions as reasons

from ostiary.core.keys.schemes import PublicKey
from ostiary.errors import KeyUnusable, PinWrong
from ostiary.model import Secret, SignatureScheme
from ostiary.plugins.pkcs11.logins import TokenSession, library_of_this_process, open_session
from ostiary.plugins.pkcs11.public_key import read_public_key
from ostiary.plugins.pkcs11.signatures import sign_digest
from ostiary.plugins.pkcs11.uri import Pkcs11Uri, parse_uri

# Which library to load where the address names none.
MODULE_VARIABLE = "OSTIARY_PKCS11_MODULE"
EVERY_MODULE = "p11-kit-proxy.so"
_GONE = (
    reasons.DeviceRemoved,
    reasons.TokenNotPresent,
    reasons.SessionClosed,
    reasons.SessionHandleInvalid,
    reasons.SlotIDInvalid,
    reasons.ObjectHandleInvalid,
    reasons.KeyHandleInvalid,
    reasons.UserNotLoggedIn,
)


class Pkcs11Key:
    """The scheme ``pkcs11``."""

    def __init__(self, uri: Pkcs11Uri, directory: Path) -> None:
        self._uri = uri
        # Absolute: a bare name would be looked up elsewhere, by the policy and by the loader.
        self._module = str((directory / Path(uri.module_path).expanduser()).absolute()) if uri.module_path else ""

    @classmethod
    def from_address(cls, address: str, directory: Path) -> Self:
        uri = parse_uri(address)
        if uri.pin_source.startswith("|"):
            raise ValueError("pin-source is a command, which is not run: name a file")
        return cls(uri, directory)

    @property
    def program(self) -> tuple[str, ...]:
        return (self._module,) if self._module else ()

    @property
    def pin_source(self) -> str:
        return self._uri.pin_source

    def open(self, *, executable: str, pin: Secret | None, asked: bool) -> OpenPkcs11Key:
        with _told("the key cannot be opened"):
            token = self._token(executable or os.environ.get(MODULE_VARIABLE) or EVERY_MODULE)
            opened = open_session(token, pin, asked=asked)
            try:
                key = self._key(opened.session, token)
                return OpenPkcs11Key(opened, key, read_public_key(opened.session, key))
            except BaseException:
                opened.close()
                raise

    def _token(self, module: str) -> pkcs11.Object:
        tokens = []
        # A token that was put in later is seen only in a list that is made now.
        for slot in _library(module).get_slots(token_present=True):
            # A token that is just being removed, or broken, is not ours to complain about: it may not be meant.
            with suppress(reasons.PKCS11Error):
                tokens.append((slot.slot_id, slot.get_token()))
        matching = [token for slot_id, token in tokens if self._matches(slot_id, token)]
        return _only(matching, "token", [token.label for _, token in tokens])

    def _matches(self, slot_id: int, token: pkcs11.Token) -> bool:
        uri = self._uri
        # An uninitialised token has neither a PIN nor a key.
        return (
            pkcs11.TokenFlag.TOKEN_INITIALIZED in token.flags
            and uri.token in ("", token.label)
            and uri.serial.encode() in (b"", token.serial)
            and uri.model in ("", token.model)
            and uri.manufacturer in ("", token.manufacturer_id)
            and uri.slot_id in (None, slot_id)
        )

    def _key(self, session: pkcs11.Session, token: pkcs11.Token) -> pkcs11.Object:
        template: dict[Attribute, pkcs11.Object] = {Attribute.CLASS: ObjectClass.PRIVATE_KEY}
        if self._uri.object:
            template[Attribute.LABEL] = self._uri.object
        if self._uri.id:
            template[Attribute.ID] = self._uri.id
        key = _only(list(session.get_objects(template)), "private key", [token.label])
        if key.key_type not in (KeyType.EC, KeyType.RSA):
            raise KeyUnusable("the key cannot be used", cause="it is neither an EC nor an RSA key", code="key-mismatch")
        return key


class OpenPkcs11Key:
    def __init__(self, opened: TokenSession, key: pkcs11.PrivateKey, public_key: PublicKey) -> None:
        self._opened, self._key = opened, key
        self.public_key = public_key

    def sign(self, digest: bytes, scheme: SignatureScheme) -> bytes:
        with _told("the token does not sign"):
            return sign_digest(self._key, digest, scheme)

    def close(self) -> None:
        self._opened.close()


def _library(module: str) -> pkcs11.Object:
    try:
        return library_of_this_process(module)
    except (reasons.PKCS11Error, RuntimeError, OSError):
        raise KeyUnusable(
            "the key cannot be opened",
            cause=f"the PKCS#11 library {module} cannot be loaded",
            hint=f"name it by module-path in the address, or by {MODULE_VARIABLE}",
            code="key-not-found",
        ) from None


def _only(matches: list[pkcs11.Object], what: str, present: list[str]) -> pkcs11.Object:
    if len(matches) == 1:
        return matches[0]
    names = ", ".join(repr(name) for name in present) or "none"
    if matches:
        cause, hint = f"{len(matches)} of them match", "say more in the address: serial, slot-id or id"
    else:
        cause, hint = f"no {what} matches the address; tokens that are here: {names}", "pkcs11-tool -L and -O list them"
    raise KeyUnusable(f"the {what} was not found", cause=cause, hint=hint, code="key-not-found")


@contextmanager
def _told(summary: str) -> Iterator[None]:
    """Make one error of ours of what the library says."""
    try:
        yield
    except reasons.PinIncorrect:
        raise PinWrong(
            "the PIN is wrong",
            cause="the token refused it, and counts how often that happens",
            hint="correct the PIN; it is not tried again until it changes",
        ) from None
    except reasons.PinLocked:
        cause = "too many wrong PINs were tried"
        raise KeyUnusable("the PIN of the token is locked", cause=cause, code="key-pin-locked") from None
    except (reasons.PinInvalid, reasons.PinLenRange):
        raise PinWrong("the PIN is wrong", cause="no PIN of this token looks like it") from None
    except _GONE:
        raise KeyUnusable(
            summary, cause="the token was removed", hint="put it back, and try again", code="key-device-failed"
        ) from None
    except (reasons.MechanismInvalid, reasons.MechanismParamInvalid, reasons.KeyTypeInconsistent):
        raise KeyUnusable(summary, cause="the token cannot make such a signature", code="key-device-failed") from None
    except reasons.PKCS11Error as error:
        raise KeyUnusable(
            summary, cause=f"the token reports {type(error).__name__}", code="key-device-failed"
        ) from None
