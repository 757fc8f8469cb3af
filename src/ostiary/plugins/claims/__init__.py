"""Groups that the identity provider attested at sign-in."""
