"""Log, metrics and traces of a running gateway."""
