"""A request that is allowed, and whose sender must first prove more (``stepUp``): checked, held, refused."""
