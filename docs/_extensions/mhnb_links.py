"""Links of a page to files of the repository.

Pages are written to be read on a code host, where a link to ../CHANGELOG.md or ../notebooks/00_tour.ipynb works as it is.
In the site a link to a notebook leads to its page. A link to another file leads into the repository, whose address is the setting
`mhnb_repository`. Where that is empty, the file's name is shown without a link.
"""

from __future__ import annotations

import posixpath
import re
from typing import Any

from sphinx.application import Sphinx

_LINK = re.compile(r"(?<!!)\[((?:[^\]`]|`[^`]*`)*)\]\(([^)\s]+)\)")
_FENCE = re.compile(r"^(```+|~~~+).*?^\1\s*$", re.MULTILINE | re.DOTALL)


def replace_links(text: str, page: str, repository: str) -> str:
    """Return the text of a page with its links out of docs/ replaced.

    Args:
        text: Markdown.
        page: where the page is in the repository, as `docs/how-to/slurm.md`.
        repository: the address that the path of a file is added to; may be empty.
    """
    parts, at = [], 0
    for fence in _FENCE.finditer(text):
        parts += [_replace_in(text[at : fence.start()], page, repository), fence[0]]
        at = fence.end()
    return "".join([*parts, _replace_in(text[at:], page, repository)])


def _replace_in(text: str, page: str, repository: str) -> str:
    return _LINK.sub(lambda link: _replace_link(link, page, repository), text)


def _replace_link(link: re.Match[str], page: str, repository: str) -> str:
    words, target = link.groups()
    if re.match(r"[a-z]+:|#|/", target):
        return link[0]
    path, _, anchor = target.partition("#")
    to = posixpath.normpath(posixpath.join(posixpath.dirname(page), path))
    if to.startswith("docs/") and page.startswith("docs/"):
        return link[0]
    if to.startswith("notebooks/") and to.endswith((".ipynb", ".md")):
        return f"[{words}](/lessons/{posixpath.basename(to)}{'#' + anchor if anchor else ''})"
    if to.startswith("docs/"):
        return f"[{words}](/{to.removeprefix('docs/')}{'#' + anchor if anchor else ''})"
    if repository:
        return f"[{words}]({repository.rstrip('/')}/{to}{'#' + anchor if anchor else ''})"
    return words if posixpath.basename(to) in words else f"{words} (`{to}`)"


def page_path(docname: str) -> str:
    """Return where the source of a page is in the repository."""
    return "notebooks/README.md" if docname == "lessons/README" else f"docs/{docname}.md"


def _on_source_read(app: Sphinx, docname: str, source: list[str]) -> None:
    if app.env.doc2path(docname).suffix == ".md":
        source[0] = replace_links(source[0], page_path(docname), app.config.mhnb_repository)


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the setting and the change of each page's text."""
    app.add_config_value("mhnb_repository", "", "env", str)
    app.connect("source-read", _on_source_read)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
