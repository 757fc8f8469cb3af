"""From a token to its user, in an API that checks tokens itself; revocations are followed."""
