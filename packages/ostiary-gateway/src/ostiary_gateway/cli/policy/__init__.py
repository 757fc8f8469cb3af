"""Commands about what a policy allows: ``can-i``, ``who-can``, ``explain``, ``policy`` and ``impersonation-role``."""
