"""HAProxy asks by SPOE, a protocol of frames of its own: the gateway is its agent.

    spop          frames, numbers and typed values as bytes, and back
    question      the request that HAProxy will forward, read from the arguments of a message
    answers       the engine's answer as variables of HAProxy
    handler       checks who asks, and hands the request to the engine
    connection    one connection of HAProxy: its greeting, its frames, its limits
    agent         the listening side: what the connections of a door share

What is decided is the same as at the other doors: see `doors.forward`. Decisions that HAProxy may use again without
asking are in `doors.haproxy.decisions`.
"""
