"""Keys in PKCS#11 tokens: finds the token and the key that the URI names, and signs with it.

Used only by the thread of the key (`keys.held_key`). The PKCS#11 library is loaded into this process; what it does with
the key is up to the library.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self
from urllib.parse import unquote_to_bytes

import pkcs11
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature
from pkcs11 import MGF, Attribute, KeyType, Mechanism, ObjectClass
from pkcs11 import exceptions as reasons

from ostiary.errors import KeyUnusable, PinNeeded, PinWrong
from ostiary.keys.address import PublicKey, usable_public_key
from ostiary.model import Secret, SignatureScheme

# Logins. PKCS#11 counts logins per process and not per session, and so do we. The first key of a token logs in, with a
# session that does nothing else. Closing that session logs all sessions out, so it is closed with the last key.


@dataclass(slots=True)
class _TokenLogin:
    session: pkcs11.Session
    keys: int = 0


_lock = threading.Lock()
_logins: dict[tuple[str, bytes], _TokenLogin] = {}
# One lock per token: a reader on which a user types the PIN does not block the other tokens.
_token_locks: dict[tuple[str, bytes], threading.Lock] = {}
# The process that initialized each library: a forked child initializes it again.
_initialized_by: dict[str, int] = {}


def _start_anew() -> None:
    """Reset after a fork: the child has no logins in PKCS#11, and its locks may be held for ever."""
    global _lock
    _lock = threading.Lock()
    _token_locks.clear()
    _logins.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_start_anew)


def library_of_this_process(module: str) -> pkcs11.Object:
    """Return the library, loaded and initialized; raises what the library raises."""
    library = pkcs11.lib(module)
    with _lock:
        if _initialized_by.setdefault(module, os.getpid()) != os.getpid():
            try:
                # Most libraries do not notice the fork, and still have the parent's sessions.
                library.reinitialize()
            except reasons.CryptokiNotInitialized:
                library.initialize()
            _initialized_by[module] = os.getpid()
    return library


@dataclass(frozen=True, slots=True)
class TokenSession:
    """A session for one key. `close` ends it; closing the last one logs out."""

    session: pkcs11.Session
    name: tuple[str, bytes]

    def close(self) -> None:
        with suppress(reasons.PKCS11Error):
            self.session.close()
        with _lock_of(self.name):
            login = _logins.get(self.name)
            if login is not None:
                login.keys -= 1
                _end_if_unused(self.name, login)


def open_session(token: pkcs11.Token, pin: Secret | None, *, asked: bool) -> TokenSession:
    """Open a session that can access private keys. Raises `PinNeeded`, `KeyUnusable`, and what the library raises."""
    name = (token.label, token.serial)
    if pkcs11.TokenFlag.LOGIN_REQUIRED not in token.flags:
        return TokenSession(token.open(), name)
    with _lock_of(name):
        login = _logins.get(name)
        if pin is None:
            if login is None or not _is_valid(login):
                raise PinNeeded("the token asks for a PIN", label=token.label)
        elif login is None or not _is_valid(login):
            _check_tries(token, asked=asked)
            login = _TokenLogin(token.open(user_pin=pin.reveal()), keys=0 if login is None else login.keys)
            _logins[name] = login
        try:
            session = token.open()
        except BaseException:
            _end_if_unused(name, login)
            raise
        login.keys += 1
    return TokenSession(session, name)


def _is_valid(login: _TokenLogin) -> bool:
    """Return whether the login is still valid. A token that was unplugged and plugged in again has lost it."""
    try:
        # Private objects are visible only when logged in.
        return any(login.session.get_objects({Attribute.CLASS: ObjectClass.PRIVATE_KEY}))
    except reasons.PKCS11Error:
        return False


def _end_if_unused(name: tuple[str, bytes], login: _TokenLogin) -> None:
    if login.keys <= 0:
        del _logins[name]
        with suppress(reasons.PKCS11Error):
            login.session.close()


def _lock_of(name: tuple[str, bytes]) -> threading.Lock:
    with _lock:
        return _token_locks.setdefault(name, threading.Lock())


def _check_tries(token: pkcs11.Token, *, asked: bool) -> None:
    """Check the PIN retry counter.

    A PIN that was not just typed by the user may use one try, but never the last ones.
    """
    flags = token.flags
    if pkcs11.TokenFlag.USER_PIN_LOCKED in flags:
        raise KeyUnusable(
            "the PIN of the token is locked",
            cause=f"too many wrong PINs were tried at the token {token.label!r}",
            hint="unlock it with the tool of its maker, or with pkcs11-tool --init-pin",
            code="key-pin-locked",
        )
    is_low = pkcs11.TokenFlag.USER_PIN_COUNT_LOW in flags or pkcs11.TokenFlag.USER_PIN_FINAL_TRY in flags
    if is_low and not asked:
        raise KeyUnusable(
            "the PIN is not tried: it could lock the token",
            cause=f"the last PIN that the token {token.label!r} was given was wrong, and nobody typed this one",
            hint="correct the PIN, then log in once by hand: pkcs11-tool --login --test",
            code="key-pin-locked",
        )


# The public half of a key in a token: from the key itself, or from an object with the same id.

_CURVES = {
    bytes.fromhex("06082a8648ce3d030107"): ec.SECP256R1(),
    bytes.fromhex("06052b81040022"): ec.SECP384R1(),
    bytes.fromhex("06052b81040023"): ec.SECP521R1(),
}


def read_public_key(session: pkcs11.Session, key: pkcs11.PrivateKey) -> PublicKey:
    """Return the public key; raises `KeyUnusable` if the token does not have it, or its type is not supported."""
    if key.key_type is KeyType.RSA:
        modulus, exponent = (
            int.from_bytes(key[name], "big") for name in (Attribute.MODULUS, Attribute.PUBLIC_EXPONENT)
        )
        return _usable(rsa.RSAPublicNumbers(exponent, modulus).public_key())
    for kind, read in ((ObjectClass.PUBLIC_KEY, _point), (ObjectClass.CERTIFICATE, _certified)):
        for each in session.get_objects({Attribute.CLASS: kind, Attribute.ID: key[Attribute.ID]}):
            with suppress(reasons.PKCS11Error, ValueError):
                return _usable(read(each))
    raise KeyUnusable(
        "the key cannot be used",
        cause="the token has neither a public key nor a certificate with the id of the private key",
        hint="write one of them to the token: pkcs11-tool --write-object cert.der --type cert --id ID",
        code="key-not-found",
    )


def _usable(public: object) -> PublicKey:
    try:
        return usable_public_key(public)
    except ValueError as error:
        raise KeyUnusable("the key cannot be used", cause=str(error), code="key-mismatch") from None


def _point(each: pkcs11.Object) -> object:
    curve = _CURVES.get(bytes(each[Attribute.EC_PARAMS]))
    if curve is None:
        raise KeyUnusable(
            "the key cannot be used", cause="its curve is none of P-256, P-384, P-521", code="key-mismatch"
        )
    point = bytes(each[Attribute.EC_POINT])
    # The point is in a DER OCTET STRING, which some tokens leave out.
    length = 1 + 2 * ((curve.key_size + 7) // 8)
    return ec.EllipticCurvePublicKey.from_encoded_point(curve, point[-length:])


def _certified(each: pkcs11.Object) -> object:
    return x509.load_der_x509_certificate(bytes(each[Attribute.VALUE])).public_key()


# Signatures: the mechanism that the token is called with, and the conversion of its result.

_HASHES = {
    "sha256": (Mechanism.SHA256, MGF.SHA256, bytes.fromhex("3031300d060960864801650304020105000420")),
    "sha384": (Mechanism.SHA384, MGF.SHA384, bytes.fromhex("3041300d060960864801650304020205000430")),
    "sha512": (Mechanism.SHA512, MGF.SHA512, bytes.fromhex("3051300d060960864801650304020305000440")),
}


def sign_digest(key: pkcs11.PrivateKey, digest: bytes, scheme: SignatureScheme) -> bytes:
    hash_mechanism, mask, prefix = _HASHES[scheme.hash_name]
    if scheme.value.startswith("ecdsa"):
        numbers = bytes(key.sign(digest, mechanism=Mechanism.ECDSA))
        half = len(numbers) // 2
        return encode_dss_signature(int.from_bytes(numbers[:half], "big"), int.from_bytes(numbers[half:], "big"))
    if scheme.value.startswith("rsa-pss"):
        parameters = (hash_mechanism, mask, len(digest))
        return bytes(key.sign(digest, mechanism=Mechanism.RSA_PKCS_PSS, mechanism_param=parameters))
    # The DigestInfo of RFC 8017, 9.2; the token adds the padding.
    return bytes(key.sign(prefix + digest, mechanism=Mechanism.RSA_PKCS))


# RFC 7512, 2.3: the characters that are valid unescaped in a value. Others are percent-encoded.
_UNRESERVED = r"A-Za-z0-9\-._~"
_PATH_VALUE = re.compile(rf"(?:[{_UNRESERVED}:\[\]@!$'()*+,=&]|%[0-9A-Fa-f]{{2}})*")
_QUERY_VALUE = re.compile(rf"(?:[{_UNRESERVED}:\[\]@!$'()*+,=/?|]|%[0-9A-Fa-f]{{2}})*")

_TEXTS = {
    "token": "token",
    "manufacturer": "manufacturer",
    "serial": "serial",
    "model": "model",
    "library-manufacturer": "library_manufacturer",
    "library-description": "library_description",
    "library-version": "library_version",
    "slot-description": "slot_description",
    "slot-manufacturer": "slot_manufacturer",
    "slot-id": "slot_id",
    "object": "object",
    "type": "type",
    "id": "id",
}
_USED = ("token", "manufacturer", "serial", "model", "slot-id", "object", "type", "id")
_QUERY = ("pin-source", "pin-value", "module-name", "module-path")
PRIVATE = "private"


@dataclass(frozen=True, slots=True)
class Pkcs11Uri:
    """The token, the key and the library. Attributes that the URI does not have are empty."""

    token: str = ""
    manufacturer: str = ""
    serial: str = ""
    model: str = ""
    slot_id: int | None = None
    object: str = ""
    id: bytes = b""
    module_path: str = ""
    pin_source: str = ""


def parse_uri(text: str) -> Pkcs11Uri:
    """Parse a PKCS#11 URI (RFC 7512) without its scheme.

        token=card;object=kube;type=private?module-path=/usr/lib/softhsm/libsofthsm2.so&pin-source=file:/etc/pin

    Stricter than the RFC requires: unknown attributes, repeated attributes, and a PIN in the text itself
    (``pin-value``), which every reader of the configuration could see, are rejected instead of ignored. Raises
    `ValueError` with a sentence, which never quotes a value.
    """
    path, question, query = text.partition("?")
    attributes = _attributes(path.split(";") if path else [], _PATH_VALUE, tuple(_TEXTS))
    options = _attributes(query.split("&") if question else [], _QUERY_VALUE, _QUERY)
    if "pin-value" in options:
        raise ValueError("pin-value would be read by everybody who can read this text: use pin-source=file:/path")
    if "module-name" in options:
        raise ValueError("module-name means a different library on each machine: use module-path=/path/of/library.so")
    for name in attributes:
        if name not in _USED:
            raise ValueError(f"{name} says nothing about the key: use token, serial, object and id")
    if attributes.get("type", PRIVATE.encode()) != PRIVATE.encode():
        raise ValueError("type is not private, and only private keys sign")
    if not attributes.get("object") and not attributes.get("id"):
        raise ValueError("it names no key: add object=LABEL or id=%01")
    return Pkcs11Uri(
        **{
            name: _text(name, attributes.get(name, b""))
            for name in ("token", "manufacturer", "serial", "model", "object")
        },
        slot_id=_slot(attributes.get("slot-id")),
        id=attributes.get("id", b""),
        module_path=_text("module-path", options.get("module-path", b"")),
        pin_source=_text("pin-source", options.get("pin-source", b"")),
    )


def _attributes(parts: list[str], value_pattern: re.Pattern[str], known: tuple[str, ...]) -> dict[str, bytes]:
    attributes: dict[str, bytes] = {}
    for part in parts:
        name, equals, value = part.partition("=")
        if not equals:
            raise ValueError("an attribute has no value: they are written name=value")
        if name not in known:
            raise ValueError(f"it has an attribute that is none of {', '.join(known)}")
        if name in attributes:
            raise ValueError(f"duplicate attribute {name}")
        if value_pattern.fullmatch(value) is None:
            raise ValueError(f"{name} has a character that must be percent-encoded")
        attributes[name] = unquote_to_bytes(value)
    return attributes


def _text(name: str, value: bytes) -> str:
    try:
        text = value.decode()
    except UnicodeDecodeError:
        raise ValueError(f"{name} is not UTF-8") from None
    if "\0" in text:
        raise ValueError(f"{name} has a NUL in it")
    return text


def _slot(value: bytes | None) -> int | None:
    if value is None:
        return None
    if re.fullmatch(rb"[0-9]{1,20}", value) is None:
        raise ValueError("slot-id is not a number")
    return int(value)


# The library to load if the address names none.
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
    """The key provider for the scheme ``pkcs11``."""

    def __init__(self, uri: Pkcs11Uri, directory: Path) -> None:
        self._uri = uri
        # Absolute: the plugin policy and the loader would search for a bare name in different places.
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
        # Request a new list: tokens that were plugged in later are missing in an old one.
        for slot in _library(module).get_slots(token_present=True):
            # Ignore a token that is broken or just being unplugged: it may not be the requested one.
            with suppress(reasons.PKCS11Error):
                tokens.append((slot.slot_id, slot.get_token()))
        matching = [token for slot_id, token in tokens if self._matches(slot_id, token)]
        return _only(matching, "token", [token.label for _, token in tokens])

    def _matches(self, slot_id: int, token: pkcs11.Token) -> bool:
        uri = self._uri
        # An uninitialized token has neither a PIN nor a key.
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
    """Convert the library's exceptions to a `KeyUnusable`."""
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
