"""The request path. Start reading at `engine`."""
