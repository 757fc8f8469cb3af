"""GitHub: sign-in, organisations and teams."""
