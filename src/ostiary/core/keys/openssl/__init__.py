"""A key that signs, in an `ssl.SSLContext`: by an OpenSSL provider whose functions are Python's.

library   the OpenSSL that `ssl` uses     tables     tables of callbacks     provider   keys and signatures
contexts  puts a key into a context
"""
