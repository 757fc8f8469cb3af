"""Identity systems of SAML 2.0, for tests."""
