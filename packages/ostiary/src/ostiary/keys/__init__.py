"""External keys: in a token, a TPM, a service or another process. They sign, and never enter this process.

address            the address of such a key        opening           from an address to an open key
device_key         the plugin interface             held_key          the thread that calls the device, with timeouts
pkcs11, tpm2, aws_kms, signing_command              the bundled plugins
openssl, openssl_provider                           use in an `ssl.SSLContext`
pairing            a certificate and its key
"""
