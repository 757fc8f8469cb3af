"""What our stores do when there are as many objects of a kind as they keep: with a smaller limit than the real one."""

from __future__ import annotations

import pytest

from ostiary.errors import ProviderError
from ostiary_gateway.interfaces import store_capabilities as stored_objects
from ostiary_gateway.testing.token_store.items import KIND, StoreWithObjects


class FullKindContract:
    async def test_a_kind_that_is_full_takes_changes_and_no_new_ones(
        self, store: StoreWithObjects, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(stored_objects, "MOST_OBJECTS", 3)
        for name in "abc":
            await store.put_object(KIND, name, b"", version=0)
        with pytest.raises(ProviderError) as caught:
            await store.put_object(KIND, "d", b"", version=None)
        assert caught.value.code == "token-store-full"
        assert await store.put_object(KIND, "a", b"changed", version=None) is not None
        assert await store.put_object("other-kind", "d", b"", version=0) is not None
        assert await store.delete_object(KIND, "b")
        assert await store.put_object(KIND, "d", b"", version=0) is not None
