"""Commands that run a gateway or ask one: ``serve`` and ``sessions``, and how a gateway is chosen and reached."""
