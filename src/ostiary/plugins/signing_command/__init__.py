"""Keys that another program signs with: a command is run for each signature."""
