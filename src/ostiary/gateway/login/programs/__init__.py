"""Sign-in for programs: a command line on this machine, or a device without a browser."""
