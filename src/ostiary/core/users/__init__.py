"""Names of users and groups that mean something to us, and how somebody signed in."""
