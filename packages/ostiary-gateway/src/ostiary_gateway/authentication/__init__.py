"""Request to user: the tokens in use, and the revocations that end them."""
