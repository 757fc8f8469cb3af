"""Where the logins of ``ostiary-credential-provider`` come from: its configuration, and a module per kind of source."""
