"""The path of a request. `engine` has the order of the steps."""
