"""How token stores write sessions down, and where one stands in their list."""
