"""Sessions after the sign-in: those of browsers, those of programs, and how long they last."""
