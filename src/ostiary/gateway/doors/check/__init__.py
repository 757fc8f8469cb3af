"""Envoy's ``ext_authz`` over gRPC: another proxy carries the requests, and asks about each by ``Authorization/Check``.

    connection  HTTP/2 and gRPC, as far as one method needs them
    framing     messages and statuses of gRPC
    kept_bytes  how much the other side may make us keep
    http2       the library for HTTP/2, with our bounds
    call        one call: its message, and its answer
    question    the request that Envoy will forward, read from what Envoy guarantees and nothing else
    carried     that request as the engine sees it; the engine's answer as Envoy gets it
    handler     checks who asks, and hands the request to the engine behind the door

What a door is, who may ask, and what an upstream is told, is the same as in `doors.forward`.
"""
