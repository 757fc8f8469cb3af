"""What several providers share: HTTP calls, JWTs, passwords, policy files. Independent of any identity provider."""
