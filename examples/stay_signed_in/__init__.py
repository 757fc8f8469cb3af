"""A client that stays signed in although its tokens live for five seconds: ``python -m examples.stay_signed_in``."""
