"""Links of a page to files of the repository, and to JAX's documentation.

Pages are written to be read on a code host, where a link to ../LICENSE or ../notebooks/00_tour.ipynb works as it is.
In the site a link to a notebook or to the changelog leads to its page.
A link to another file leads into the repository, whose address is the setting `mhnb_repository`.
Where that is empty, the file's name is shown without a link.

A function of JAX that a page names in code leads to its page in JAX's documentation, where the page names it first.
"""

from __future__ import annotations

import posixpath
import re
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx

_LINK = re.compile(r"(?<!!)\[((?:[^\]`]|`[^`]*`)*)\]\(([^)\s]+)\)")
_FENCE = re.compile(r"^(```+|~~~+).*?^\1\s*$", re.MULTILINE | re.DOTALL)


JAX_PAGES = "https://docs.jax.dev/en/latest/_autosummary/"
"""Where JAX's documentation has a page for each function."""
_JAX_NAMES = (
  "jax.Array", "jax.debug.print", "jax.device_count", "jax.device_put", "jax.devices", "jax.distributed.initialize",
  "jax.distributed.shutdown", "jax.experimental.mesh_utils.create_hybrid_device_mesh",
  "jax.experimental.multihost_utils.process_allgather", "jax.experimental.multihost_utils.sync_global_devices",
  "jax.jit", "jax.lax.cond", "jax.lax.psum", "jax.local_device_count", "jax.local_devices", "jax.make_array_from_callback",
  "jax.make_array_from_process_local_data", "jax.make_array_from_single_device_arrays", "jax.make_mesh", "jax.pmap",
  "jax.process_count", "jax.process_index", "jax.pure_callback", "jax.shard_map",
)  # fmt: skip
_FULL_NAMES = {name: name for name in _JAX_NAMES}
# Pages call these by their last part, too. Other last parts, such as `devices`, are everyday words.
_FULL_NAMES |= {
    last: name for name in _JAX_NAMES if "_" in (last := name.rpartition(".")[2]) and not last.startswith("local_")
}


def jax_address(code: str) -> str | None:
    """Return the address of JAX's page on a function, such as `jax.devices()`; None if the code names no such function."""
    name = _FULL_NAMES.get(re.sub(r"\((?:\.\.\.)?\)$", "", code))
    return None if name is None else f"{JAX_PAGES}{name}.html"


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
    if to == "CHANGELOG.md":
        return f"[{words}](/changelog.md{'#' + anchor if anchor else ''})"
    if to.startswith("docs/"):
        return f"[{words}](/{to.removeprefix('docs/')}{'#' + anchor if anchor else ''})"
    if repository:
        return f"[{words}]({repository.rstrip('/')}/{to}{'#' + anchor if anchor else ''})"
    return words if posixpath.basename(to) in words else f"{words} (`{to}`)"


def page_path(docname: str) -> str:
    """Return where the source of a page is in the repository."""
    return {"lessons/README": "notebooks/README.md", "changelog": "CHANGELOG.md"}.get(docname, f"docs/{docname}.md")


def _on_source_read(app: Sphinx, docname: str, source: list[str]) -> None:
    if app.env.doc2path(docname).suffix == ".md":
        source[0] = replace_links(source[0], page_path(docname), app.config.mhnb_repository)


def _on_doctree_read(_app: Sphinx, doctree: nodes.document) -> None:
    """Link the first mention of each function of JAX; not in a heading, which is a line of the contents."""
    linked = set()
    for literal in list(doctree.findall(nodes.literal)):
        address = jax_address(literal.astext())
        is_free = not any(
            isinstance(above, nodes.reference | nodes.title) for above in (literal.parent, literal.parent.parent)
        )
        if address is not None and address not in linked and is_free:
            linked.add(address)
            literal.replace_self(nodes.reference("", "", literal.deepcopy(), refuri=address, internal=False))


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the setting and the changes of each page."""
    app.add_config_value("mhnb_repository", "", "env", str)
    app.connect("source-read", _on_source_read)
    app.connect("doctree-read", _on_doctree_read)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
