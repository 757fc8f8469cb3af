"""An API plugin: a process of its own that serves ``builds.example.com`` beside a cluster, behind the gateway.

    python -m examples.api_plugin --certificate builds.pem --key builds.key --gateway-ca gateway-ca.pem \\
        --gateway-name ostiary-gateway

It has no users, no tokens and no policy: the gateway has signed the user in and has asked the policy before a request
gets here. It must only make sure that it is the gateway that calls: by its client certificate.
"""
