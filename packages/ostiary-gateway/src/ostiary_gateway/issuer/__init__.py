"""The gateway as an OpenID Connect issuer: its signing keys, and the JWTs that others verify themselves.

signing_key    one key: its id, its public half, its signature     claims     what a JWT says of a session
key_ring       which key signs, and which are published            issuer     signs a JWT, or refuses
key_files      keys in files of the operator                       deny_list  what revocations mean for JWTs
stored_keys    keys in the token store, rotated there
"""
