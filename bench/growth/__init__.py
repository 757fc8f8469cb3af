"""How figures grow: with connections, users, bindings and stored tokens. A module for each curve."""
