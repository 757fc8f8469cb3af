"""Real tokens for tests: SoftHSM as a smartcard, swtpm as a TPM, and certificates for the keys in them."""
