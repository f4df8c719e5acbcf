"""MkDocs hook: show links to files outside `docs/` as text, because the site does not contain these files."""

import re
from typing import Any


def on_page_markdown(markdown: str, *, page: Any, **_: object) -> str:
    """Return the page's text without links that leave `docs/`. A page in a folder may link one level up."""
    up = page.file.src_uri.count("/")
    pattern = re.compile(rf"\[([^\]]+)\]\((?:\.\./){{{up + 1},}}[^)]*\)")
    return pattern.sub(r"\1", markdown)
