#!/usr/bin/env python3
"""Fails if a link within the built documentation leads nowhere: usage `check-site.py FOLDER`."""

import html
import re
import sys
from pathlib import Path

LINK = re.compile(r'(?:href|src)="([^"]+)"')
LEFT_OUT = {"print.html", "404.html", "toc.html"}  # copies of other pages, and what frames them


def main() -> int:
    folder = Path(sys.argv[1]).resolve()
    pages = {
        path: path.read_text(encoding="utf-8")
        for path in folder.rglob("*.html")
        if path.name not in LEFT_OUT
    }
    anchors = {path: set(re.findall(r'id="([^"]+)"', text)) for path, text in pages.items()}
    checked, broken = 0, []
    for page, text in sorted(pages.items()):
        content = text[text.find("<main") : text.find("</main>")]
        for link in map(html.unescape, LINK.findall(content)):
            if "://" in link or link.startswith("mailto:"):
                continue
            checked += 1
            path, _, anchor = link.partition("#")
            target = (page.parent / path).resolve() if path else page
            known = anchors.get(target)
            if path and not target.is_file():
                broken.append(f"{page.relative_to(folder)}: nothing is at {link}")
            elif anchor and known and anchor not in known:
                broken.append(f"{page.relative_to(folder)}: no heading is at {link}")
    print("\n".join([*broken, f"{checked} links, {len(broken)} broken"]))
    return 1 if broken or not checked else 0


if __name__ == "__main__":
    sys.exit(main())
