"""A program that stays signed in while its plugin's tokens live five seconds: ``python -m examples.stay_signed_in``."""
