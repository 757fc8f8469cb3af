"""Limits per user and in total: request rates, concurrency, streams, connections, buffered bytes, failed attempts."""
