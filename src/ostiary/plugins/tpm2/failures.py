"""What can go wrong with a TPM, and what it is called: one error of ours for each."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager

from ostiary.errors import KeyUnusable, PinNeeded, PinWrong

# Part 2 of the specification of TPM 2.0, 6.6. The words of the TPM begin with the number.
_AUTHORIZATION_FAILED = (0x98E, 0x9A2)
_LOCKOUT = 0x921
_NO_SUCH_HANDLE = 0x18B
_WRONG_SCHEME = 0x92
_NUMBER = re.compile(r"(?:^|: |; )(\d{2,10}) (?:tpm|esapi|tcti|sys|mu|rmt|fapi|policy)")


class ProviderMissing(Exception):
    """tpm2-openssl is not installed, or no TPM answers it."""


class PasswordAsked(Exception):
    """The key has a password, and none was given."""


class OperationFailed(Exception):
    """The words of OpenSSL or of the TPM."""


class NotLoaded(OperationFailed):
    """There is nothing to load, or the TPM does not load it."""


class SchemeRefused(KeyUnusable):
    """The key was made for other signatures than this one."""


@contextmanager
def failures_told() -> Iterator[None]:
    try:
        yield
    except PasswordAsked:
        raise PinNeeded("the key in the TPM has a password", label="TPM key") from None
    except ProviderMissing as error:
        raise _no_tpm(str(error)) from None
    except OperationFailed as error:
        raise _refusal(str(error), loading=isinstance(error, NotLoaded)) from None


def _no_tpm(words: str) -> KeyUnusable:
    if "shared library" in words:
        return KeyUnusable(
            "the TPM cannot be used",
            cause="OpenSSL has no provider for it",
            hint="apt-get install tpm2-openssl, or set OPENSSL_MODULES to the directory that has tpm2.so",
        )
    place = os.environ.get("TPM2OPENSSL_TCTI", "")
    return KeyUnusable(
        "the TPM cannot be used",
        cause=f"no TPM answers{f' at {place}' if place else ''}, or another process has it",
        hint="use /dev/tpmrm0, which several processes can use: TPM2OPENSSL_TCTI=device:/dev/tpmrm0",
    )


def _refusal(words: str, *, loading: bool) -> KeyUnusable:
    match = _NUMBER.search(words)
    number = int(match[1]) if match else 0
    if number in _AUTHORIZATION_FAILED:
        cause = "the TPM refused it, and counts how often that happens"
        return PinWrong(
            "the password of the key in the TPM is wrong", cause=cause, hint="correct the file of pin-source"
        )
    if number == _LOCKOUT:
        return KeyUnusable(
            "the TPM is locked",
            cause="too many wrong passwords were tried (dictionary attack lockout)",
            hint="wait until it allows tries again, or: tpm2_dictionarylockout --clear-lockout",
            code="key-pin-locked",
        )
    if number == _NO_SUCH_HANDLE or (loading and not number):
        cause = "there is no key at this handle or in this file"
        return KeyUnusable("the key was not found in the TPM", cause=cause, code="key-not-found")
    kind = SchemeRefused if number & 0xBF == _WRONG_SCHEME else KeyUnusable
    return kind("the TPM does not sign", cause=f"it reports: {words}")
