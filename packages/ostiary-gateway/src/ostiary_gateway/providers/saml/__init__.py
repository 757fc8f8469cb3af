"""People sign in at a SAML 2.0 identity system."""
