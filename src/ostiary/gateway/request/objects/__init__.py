"""What is read of the object in a request before it is forwarded: its body, and what it asks for."""
