"""What `ssl` cannot do with its OpenSSL: a key that signs elsewhere, and the tickets of sessions.

library   the OpenSSL that `ssl` uses     tables     tables of callbacks     provider   keys and signatures
contexts  puts a key into a context       session_tickets   who may resume a session
"""
