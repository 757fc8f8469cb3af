"""Image credentials from a custom provider, without a cluster: ``ostiary registry explain`` and related commands."""
