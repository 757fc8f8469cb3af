"""Keys in smartcards, HSMs and other tokens, by their PKCS#11 library."""
