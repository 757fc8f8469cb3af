"""Signs whole requests: a signer sees method, URL, headers and body, and adds headers."""
