"""The library's HTTP/2 connection with our bounds, and what the library itself cannot say.

Used by `check.connection`.
"""

from __future__ import annotations

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.settings import SettingCodes, Settings
from hyperframe.frame import GoAwayFrame

MOST_CALLS = 256
# Of the metadata of one call; Envoy sends less than one kilobyte.
MOST_METADATA_BYTES = 16 * 1024
# What we send is made of constants, and need not be checked each time.
_CONFIGURATION = H2Configuration(
    client_side=False, header_encoding=None, validate_outbound_headers=False, normalize_outbound_headers=False
)


class BoundedHttp2(H2Connection):
    """The side of the server. The bounds hold from the first byte on, and not only once they are confirmed."""

    DEFAULT_MAX_HEADER_LIST_SIZE = MOST_METADATA_BYTES
    # How many ended calls it knows, to tell a late frame from a wrong one.
    MAX_CLOSED_STREAMS = 1024

    def __init__(self) -> None:
        super().__init__(_CONFIGURATION)
        settings = {
            SettingCodes.MAX_CONCURRENT_STREAMS: MOST_CALLS,
            SettingCodes.MAX_HEADER_LIST_SIZE: MOST_METADATA_BYTES,
        }
        self.local_settings = Settings(client=False, initial_values=settings)

    def goodbye(self) -> bytes:
        """A GOAWAY after which what was begun goes on: after one of the library's own it would answer nothing."""
        return GoAwayFrame(stream_id=0, last_stream_id=self.highest_inbound_stream_id).serialize()
