"""The plugin interface for external keys, with a plugin per scheme of address (``pkcs11:``, ``tpm2:``, ...).

    [project.entry-points."ostiary.key"]
    pkcs11 = "ostiary.keys.pkcs11:Pkcs11Key"

A plugin opens an `ostiary.model.DeviceKey`, which signs.
"""

from __future__ import annotations

from pathlib import Path
from typing import Protocol, Self, runtime_checkable

from ostiary.model import DeviceKey, Secret


@runtime_checkable
class MadeFromAddress(Protocol):
    """The type of an entry point's target."""

    @classmethod
    def from_address(cls, address: str, directory: Path) -> Self:
        """Parse *address*, without its scheme; paths are relative to *directory*. Raises `ValueError` with a sentence.

        Opens nothing. An unknown attribute is an error: no part of an address is ignored.
        """


@runtime_checkable
class KeyProvider(Protocol):
    """A parsed address that is not opened yet.

    Calls in order: `from_address`, then `program` and `pin_source`, then `open`, perhaps several times, because an open
    key may be lost and is opened again. `open` and the key's `sign` are called in one thread that belongs to the key,
    one call at a time, and callers wait with a timeout. Nothing is retried: a card that counts wrong PINs would lock.
    """

    @property
    def program(self) -> tuple[str, ...]:
        """Return the command and its arguments, or the library, that the address runs; empty if it names none.

        An address may come from an untrusted kubeconfig, so the caller checks its plugin policy first.
        """

    @property
    def pin_source(self) -> str:
        """Return the file with the PIN as written in the address: a path or a ``file:`` URL; empty if there is none.

        The caller resolves it, and checks its plugin policy if there is no program.
        """

    def open(self, *, executable: str, pin: Secret | None, asked: bool) -> DeviceKey:
        """Return the key, ready to sign. *executable* is the program as resolved by the policy; empty if there is none.

        Raise `PinNeeded` if the device requires a PIN and *pin* is None; `PinWrong` if it rejected this one. *asked*
        means that the user has just typed it: otherwise do not try any PIN on a device that may lock at the next wrong
        one. Raise `KeyUnusable` for other failures, with the code that fits.
        """
