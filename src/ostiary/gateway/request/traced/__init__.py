"""The same steps of a request, recorded as spans of a trace. Loaded only where tracing is configured."""
