"""Registry credentials: from the name of an image to the usernames and passwords that may pull it."""
