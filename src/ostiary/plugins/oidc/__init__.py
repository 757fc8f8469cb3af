"""OpenID Connect issuers."""
