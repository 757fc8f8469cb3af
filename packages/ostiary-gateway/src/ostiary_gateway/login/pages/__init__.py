"""HTML pages: templates, texts, branding, and the pages of signed-in users."""
