"""What is remembered between requests. `heads` is by the bytes of a head, `plans` by user and request line."""
