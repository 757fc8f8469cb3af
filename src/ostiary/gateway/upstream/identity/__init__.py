"""Who asks, as an upstream is told it, and how the gateway itself signs in there."""
