"""Door 2: from the name of an image to the usernames and passwords that may pull it."""
