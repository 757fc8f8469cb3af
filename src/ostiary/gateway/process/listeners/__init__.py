"""Listeners beside the one for requests: for proxies that ask by SPOE (`agents`) and by gRPC (`grpc`)."""
