"""Token stores, and how they are copied and compared."""
