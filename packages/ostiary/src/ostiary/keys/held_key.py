"""An open key: a dedicated thread calls the device, and callers wait with a timeout.

Token libraries require one thread per session, and a call that hangs in a device cannot be cancelled. So every key has
one thread. While a call hangs, all others fail immediately instead of queueing up.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from contextlib import suppress
from queue import SimpleQueue
from typing import TypeVar, cast

from ostiary.errors import KeyUnusable, OstiaryError
from ostiary.keys.address import PublicKey, usable_public_key
from ostiary.model import DeviceKey, SignatureScheme

T = TypeVar("T")

SIGN_SECONDS = 10.0
OPEN_SECONDS = 30.0


class HeldKey:
    """A `DeviceKey` that is opened with *open_key*, and opened again after a failure. Thread-safe."""

    def __init__(
        self,
        name: str,
        open_key: Callable[[], DeviceKey],
        *,
        seconds: float = SIGN_SECONDS,
        open_seconds: float = OPEN_SECONDS,
    ) -> None:
        self.name = name
        self._seconds = seconds
        self._process = os.getpid()
        # The call that timed out and still hangs.
        self._hanging: Future[object] | None = None
        self._device = _DeviceThread(name, open_key)
        # The thread has no reference to this object: when it is garbage-collected, the thread releases the device and
        # ends.
        self._end = weakref.finalize(self, self._device.calls.put, None)
        threading.Thread(target=self._device.serve, name=f"key {name}", daemon=True).start()
        try:
            self.public_key: PublicKey = self._wait(self._device.open, open_seconds, "was not opened")
        except BaseException:
            self.close()
            raise

    def sign(self, digest: bytes, scheme: SignatureScheme) -> bytes:
        return self._wait(lambda: self._device.sign(digest, scheme), self._seconds, "did not sign")

    def close(self) -> None:
        """Close the device, in the key's own thread after its current call."""
        self._end()

    @property
    def is_closed(self) -> bool:
        """Return whether the key is closed. True in a forked child, which does not have the thread of the key."""
        return not self._end.alive or os.getpid() != self._process

    def __repr__(self) -> str:
        return f"HeldKey({self.name})"

    def _wait(self, work: Callable[[], T], seconds: float, failed: str) -> T:
        if os.getpid() != self._process:
            raise KeyUnusable(
                "the key cannot be used in this process",
                cause="the process was forked after the key had been opened",
                where=self.name,
                hint="connect after the fork, in each process",
            )
        hanging = self._hanging
        if self.is_closed or (hanging is not None and not hanging.done()):
            cause = "it was closed" if self.is_closed else "an earlier call still hangs in the device"
            code = "key-device-failed" if self.is_closed else "key-device-busy"
            raise KeyUnusable("the key does not sign", cause=cause, where=self.name, code=code)
        call: Future[object] = Future()
        self._device.calls.put((call, work))
        try:
            return cast("T", call.result(seconds))
        except FutureTimeout:
            if call.done():
                raise  # raised by the device itself
            self._hanging = call
            raise KeyUnusable(
                f"the key {failed} in time",
                cause=f"no answer within {seconds:g} s; another process may be using the device",
                where=self.name,
                code="key-device-timeout",
            ) from None


class _DeviceThread:
    """State and work of a key's thread: the open key, and the queue of calls."""

    def __init__(self, name: str, open_key: Callable[[], DeviceKey]) -> None:
        self.calls: SimpleQueue[tuple[Future[object], Callable[[], object]] | None] = SimpleQueue()
        self._name, self._open_key = name, open_key
        self._key: DeviceKey | None = None
        self._public_key: PublicKey | None = None

    def serve(self) -> None:
        while (item := self.calls.get()) is not None:
            call, work = item
            try:
                call.set_result(work())
            except BaseException as error:
                if isinstance(error, OstiaryError):
                    error.where = error.where or self._name
                call.set_exception(error)
            # Do not keep a reference to the signature until the next call.
            del call, work, item
        self._drop()

    def open(self) -> PublicKey:
        key = self._open_key()
        try:
            public = usable_public_key(key.public_key)
        except ValueError as error:
            key.close()
            raise KeyUnusable(
                "the key cannot be used", cause=str(error), where=self._name, code="key-mismatch"
            ) from None
        if self._public_key is not None and self._public_key != public:
            key.close()
            raise KeyUnusable(
                "the key is another one than before",
                cause="the device was exchanged while it was in use",
                where=self._name,
                code="key-mismatch",
            )
        self._key, self._public_key = key, public
        return public

    def sign(self, digest: bytes, scheme: SignatureScheme) -> bytes:
        if self._key is None:
            self.open()
        assert self._key is not None
        try:
            return self._key.sign(digest, scheme)
        except BaseException:
            # A token may have been unplugged and plugged in again, which invalidates the open key.
            self._drop()
            raise

    def _drop(self) -> None:
        key, self._key = self._key, None
        if key is not None:
            with suppress(Exception):
                key.close()
