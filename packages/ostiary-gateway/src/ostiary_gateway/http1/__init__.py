"""HTTP/1.1: connections from clients and to upstreams."""
