"""SAML 2.0: users sign in at an identity provider."""
