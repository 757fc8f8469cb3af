"""Image credentials from a provider of one's own: ``ostiary registry explain`` and friends, without a cluster."""
