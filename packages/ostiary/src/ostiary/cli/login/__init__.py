"""Sign-in at a gateway: the commands login, logout, whoami and get-token, and what they share.

options          which gateway, which account          gateway      its endpoints over HTTP
login_lock       one sign-in for many processes        sessions     cached tokens, private files and locks
login_methods    Kerberos, browser, device, password   platforms    as a CI job or pod, unattended
"""
