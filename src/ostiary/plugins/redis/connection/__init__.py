"""How Redis is reached: where the primary is, connections to it, and what their failures mean."""
