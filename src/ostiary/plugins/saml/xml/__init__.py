"""XML of strangers: parsed with suspicion, signed, verified and decrypted."""
