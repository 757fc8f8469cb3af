"""Traces of requests: what is recorded of each step, and how it gets to a collector.

Only `trace` is loaded where tracing is not configured, for `traced_step`; and only `otlp` needs the extra ``otel``.
"""
