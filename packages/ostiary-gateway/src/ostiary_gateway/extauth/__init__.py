"""Forward-auth: another proxy carries the requests, and asks about each of them before it does.

    dialects         what each kind of proxy tells, and how it understands an answer
    question         the request that the proxy will forward, read from what that proxy guarantees and nothing else
    carried          that request as the engine sees it; the engine's answer as the proxy gets it
    identity         the headers of an allowing answer
    claims           headers of the client that must not reach an upstream
    sign_in_paths    what the proxy of a web application sends to the gateway itself, and never asks about
    vain_questions   counts and logs the questions that cannot be answered
    callers          whether it is the proxy that asks
    handler          receives the questions below ``/doors``

A further kind of proxy is a member of `ProxyKind` and a row in `dialects`; one that asks in another protocol than HTTP
needs its own `handler`, and nothing else here.
"""
