"""An API plugin: a separate process behind the gateway that adds the API group ``builds.example.com`` to a cluster.

    python -m examples.api_plugin --certificate builds.pem --key builds.key --gateway-ca gateway-ca.pem \\
        --gateway-name ostiary-gateway

It has no users, no tokens and no policy: the gateway authenticates and authorizes each request before it forwards it
here. The plugin must only check, by the client certificate, that the caller is the gateway.
"""
