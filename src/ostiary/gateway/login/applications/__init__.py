"""Web applications behind the gateway: their visitors sign in here, and get a cookie for the application's own host."""
