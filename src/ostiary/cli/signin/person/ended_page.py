"""The page on loopback that ends a browser sign-in when the gateway cannot show one.

It looks like the gateway's own pages, without the operator's branding, which only the gateway knows.
"""

from __future__ import annotations

import html
import secrets
from enum import Enum

from ostiary.gateway.look.languages import preferred


class EndedPage(Enum):
    SIGNED_IN = "signed in"
    FAILED = "failed"
    NOT_CONFIRMED = "not confirmed"
    USED = "used"
    UNKNOWN = "unknown"

    @property
    def status(self) -> int:
        return {EndedPage.SIGNED_IN: 200, EndedPage.UNKNOWN: 404}.get(self, 400)


# By language and page: the heading and the text, which is HTML.
_TEXTS = {
    "en": {
        EndedPage.SIGNED_IN: (
            "You are signed in on the command line",
            "Go back to the terminal. You can close this page.",
        ),
        EndedPage.FAILED: (
            "You are not signed in",
            "The sign-in failed. The terminal says more. You can close this page.",
        ),
        EndedPage.NOT_CONFIRMED: (
            "The sign-in was not confirmed",
            "You are still signed in. The terminal says more. You can close this page.",
        ),
        EndedPage.USED: ("This sign-in link was already used", "You can close this page."),
        EndedPage.UNKNOWN: ("Page not found", "Start the sign-in in the terminal: <code>ostiary login</code>"),
    },
    "de": {
        EndedPage.SIGNED_IN: (
            "Sie sind auf der Kommandozeile angemeldet",
            "Gehen Sie zurück zum Terminal. Sie können diese Seite schließen.",
        ),
        EndedPage.FAILED: (
            "Sie sind nicht angemeldet",
            "Die Anmeldung ist fehlgeschlagen. Mehr dazu steht im Terminal. Sie können diese Seite schließen.",
        ),
        EndedPage.NOT_CONFIRMED: (
            "Die Anmeldung wurde nicht bestätigt",
            "Sie sind weiterhin angemeldet. Mehr dazu steht im Terminal. Sie können diese Seite schließen.",
        ),
        EndedPage.USED: ("Dieser Anmeldelink wurde schon verwendet", "Sie können diese Seite schließen."),
        EndedPage.UNKNOWN: (
            "Seite nicht gefunden",
            "Beginnen Sie die Anmeldung im Terminal: <code>ostiary login</code>",
        ),
    },
}
_PAGE = """\
<!doctype html>
<html lang="{language}">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta name="robots" content="noindex">
<title>{title} - ostiary</title>
<link rel="icon" href="data:,">
<style nonce="{nonce}">
:root {{ --page: #f4f5f7; --card: #fff; --text: #1c2128; --line: #d0d7de; --code: #f0f2f5; }}
@media (prefers-color-scheme: dark) {{
  :root {{ --page: #14181d; --card: #1d232b; --text: #e6eaf0; --line: #39424d; --code: #14181d; }}
}}
* {{ box-sizing: border-box; }}
body {{
  margin: 0; padding: 1rem; background: var(--page); color: var(--text);
  font: 1rem/1.5 system-ui, -apple-system, "Segoe UI", "Noto Sans", "DejaVu Sans", sans-serif;
}}
main {{
  max-width: 26rem; margin: 3rem auto; padding: 1.5rem; background: var(--card); border: 1px solid var(--line);
  border-radius: .75rem;
}}
h1 {{ font-size: 1.5rem; line-height: 1.25; margin: 0 0 .75rem; }}
p {{ margin: 0; }}
code {{ background: var(--code); padding: .1rem .3rem; border-radius: .25rem; }}
</style>
</head>
<body>
<main>
<h1>{title}</h1>
<p>{text}</p>
</main>
</body>
</html>
"""


def render(page: EndedPage, *, accept_language: str) -> tuple[str, bytes]:
    """Return the page's Content-Security-Policy, and the page."""
    nonce = secrets.token_urlsafe(16)
    language = preferred(accept_language, tuple(_TEXTS))
    title, text = _TEXTS[language][page]
    whole = _PAGE.format(language=language, title=html.escape(title), text=text, nonce=nonce)
    policy = f"default-src 'none'; style-src 'nonce-{nonce}'; img-src data:; base-uri 'none'; frame-ancestors 'none'"
    return policy, whole.encode()
