"""The languages that the pages speak, each with a file ``login/pages/assets/messages/<language>.toml``."""

# The first is what is spoken where nobody asks for another, and the operator says nothing else.
LANGUAGES = ("en", "de")
