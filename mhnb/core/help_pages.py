"""Find a section of a help page, and format it as text.

The pages are MyST Markdown: an anchor is a line `(name)=` before a heading.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

_ANCHOR = re.compile(r"^\(([\w.-]+)\)=\s*$")
_HEADING = re.compile(r"^(#{1,6})\s+(.+?)\s*#*\s*$")
_FENCE = re.compile(r"^\s*(`{3,}|~{3,}|:{3,})(.*)$")
_DIRECTIVE = re.compile(r"^\s*\{([\w-]+)\}\s*(.*)$")
_LINK = re.compile(r"!?\[([^\]]*)\]\([^)\s]*(?:\s+\"[^\"]*\")?\)")
_ROLE = re.compile(r"\{[\w:+-]+\}`([^`<]*?)\s*(?:<([^`>]*)>)?`")
_BARE_LINK = re.compile(r"<((?:https?|mailto):[^>]+)>")
_BOLD = re.compile(r"\*\*([^*]+)\*\*")


@dataclass(frozen=True, slots=True)
class _Heading:
    line: int
    level: int
    title: str
    anchors: tuple[str, ...]
    first_line: int
    """The line of its first anchor; its own if it has none."""


def list_sections(markdown: str) -> dict[str, str]:
    r"""Return each section's title by the name of its anchor.

    >>> list_sections("# Messages\n\n(order-mismatch)=\n\n## OrderMismatch\n\nText.")
    {'order-mismatch': 'OrderMismatch'}
    """
    return {name: heading.title for heading in _list_headings(markdown.splitlines()) for name in heading.anchors}


def find_section(markdown: str, name: str) -> str | None:
    r"""Return the section with this anchor, subsections included; None without one.

    Case, hyphens and underscores do not count, so the name of an error class is also found.

    >>> find_section("(not-clean)=\n## NotClean\n\nText.\n\n(other)=\n## Other", "NotClean")
    '## NotClean\n\nText.'
    """
    lines = markdown.splitlines()
    headings = _list_headings(lines)
    wanted = _normalize(name)
    for at, heading in enumerate(headings):
        if wanted in map(_normalize, heading.anchors):
            following = (other for other in headings[at + 1 :] if other.level <= heading.level)
            end = next((other.first_line for other in following), len(lines))
            return "\n".join(lines[heading.line : end]).strip()
    return None


def render_text(markdown: str) -> str:
    r"""Format Markdown as plain text, with code indented and marks removed.

    >>> render_text("## Title\n\nSee [the guide](guide.md#x) and {ref}`states`.\n\n```text\n%mhjax stop\n```")
    'Title\n=====\n\nSee the guide and states.\n\n    %mhjax stop'
    """
    return "\n".join(_render_lines(markdown.splitlines())).strip()


def _normalize(name: str) -> str:
    return re.sub(r"[-_ ]", "", name).lower()


def _list_headings(lines: list[str]) -> list[_Heading]:
    headings: list[_Heading] = []
    anchors: list[str] = []
    first_anchor, fence = 0, ""
    for number, line in enumerate(lines):
        fence, is_fence = _follow_fence(fence, line)
        if is_fence or fence:
            anchors = []
        elif found := _ANCHOR.match(line):
            first_anchor = first_anchor if anchors else number
            anchors.append(found[1])
        elif found := _HEADING.match(line):
            title = _render_inline(found[2])
            headings.append(_Heading(number, len(found[1]), title, tuple(anchors), first_anchor if anchors else number))
            anchors = []
        elif line.strip():
            anchors = []
    return headings


def _follow_fence(fence: str, line: str) -> tuple[str, bool]:
    """Return the open fence, and whether the line is a fence."""
    found = _FENCE.match(line)
    if found is None:
        return fence, False
    if not fence:
        return found[1], True
    if found[1].startswith(fence) and not found[2].strip():
        return "", True
    return fence, False


def _render_lines(lines: list[str]) -> Iterator[str]:
    fence, is_code = "", False
    for line in lines:
        was_open = fence
        fence, is_fence = _follow_fence(fence, line)
        if is_fence:
            if not was_open:
                # A directive such as a note has prose in it; a plain fence has code.
                directive = _DIRECTIVE.match((_FENCE.match(line) or [line, "", ""])[2])
                is_code = directive is None or directive[1].startswith("code")
                if directive is not None and not is_code:
                    yield f"{directive[2] or directive[1].capitalize()}:"
            continue
        if fence and is_code:
            yield f"    {line}".rstrip()
        elif _ANCHOR.match(line):
            continue
        elif found := _HEADING.match(line):
            title = _render_inline(found[2])
            yield title
            yield ("=" if len(found[1]) < 3 else "-") * len(title)
        else:
            yield _render_inline(line).rstrip()


def _render_inline(text: str) -> str:
    text = _LINK.sub(r"\1", text)
    text = _ROLE.sub(lambda found: found[1] or found[2], text)
    return _BOLD.sub(r"\1", _BARE_LINK.sub(r"\1", text))
