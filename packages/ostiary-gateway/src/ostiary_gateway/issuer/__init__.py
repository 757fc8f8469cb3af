"""The gateway as an OpenID Connect issuer: its signing keys, and the JWTs that clusters and upstreams verify."""
