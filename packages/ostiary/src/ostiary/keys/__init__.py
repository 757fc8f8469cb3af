"""Keys that are kept elsewhere: in a token, a TPM, a service or another process. They sign, and never come here.

address    what such a key is called                      opening    from an address to a key that signs
pins       where a PIN comes from, and which was wrong    held_key   the thread that asks the device, with a time limit
pairing    a certificate and the key that belongs to it   schemes    which signature goes with which key
openssl/   such a key in an `ssl.SSLContext`
"""
