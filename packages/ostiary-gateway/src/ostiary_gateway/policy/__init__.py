"""Tools for operators who change a policy: compare, replay, shadow, suggest and lint."""
