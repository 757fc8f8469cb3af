"""The process of ``ostiary connect``: a listener for each context, the requests through it, and the Unix socket."""
