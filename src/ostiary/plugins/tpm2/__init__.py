"""Keys in a TPM 2.0, by the provider of tpm2-openssl."""
