"""``ostiary token``: a token that is less than its owner."""
