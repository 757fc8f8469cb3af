"""The connection code: HTTP/1.1 from the client, and to the upstream."""
