"""What views share: styles, display ids, text helpers and rank locations.

An untrusted notebook loses `<style>`, `name`, `role` and `aria-*`. Inline styles stay, but not `var()`.
So inline styles carry everything that is essential, and use no colour that only one theme can show.
`<style>` adds tabs and polish.

Display ids are unique in the notebook, also among displays that an earlier kernel left in it.
"""

from __future__ import annotations

import re
import secrets
import socket
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count

from mhnb.core.launch.hosts import format_hosts
from mhnb.core.ranks import describe_many_ranks, describe_ranks
from mhnb.types import RankError, RankInfo

NOT_YET = "NotYet"
"""The name of the error of an exercise that is not right yet. Its text is shown without a name."""
_MAX_HOSTS_CHARS = 32
_MAX_ERROR_CHARS = 200


@dataclass(frozen=True, slots=True)
class RankLocations:
    """Host and log file of each rank; views omit missing ones."""

    hosts: Mapping[int, str] = field(default_factory=dict)
    """Host label by rank, as `host2`."""
    logs: Mapping[int, str] = field(default_factory=dict)
    """Path of the log file with the rank's complete output."""
    cluster: str = ""
    """The cluster's name."""
    notebook_dir: str = ""
    """The notebook's folder, from which a front end opens files; empty if it is unknown."""
    script_path: str = ""
    """The file that runs instead of cells; empty if cells run."""

    def host_of(self, ranks: Iterable[int]) -> str | None:
        """Return the host of all `ranks`; None if several or unknown."""
        hosts = {self.hosts.get(rank) for rank in ranks}
        return hosts.pop() if len(hosts) == 1 else None


def name_hosts(ranks: Sequence[RankInfo]) -> dict[int, str]:
    """Return each rank's host label, with hostnames unless all are local."""
    is_elsewhere = bool({rank.hostname for rank in ranks} - {"", socket.gethostname()})
    return {rank.rank: f"{rank.host} {rank.hostname}".rstrip() if is_elsewhere else rank.host for rank in ranks}


def format_error(error: RankError) -> str:
    """Format an error in one line; the failure report has more.

    >>> format_error(RankError("ValueError", "no", ())), format_error(RankError("KeyboardInterrupt", "", ()))
    ('ValueError: no', 'KeyboardInterrupt')
    """
    if error.ename == NOT_YET:
        return error.evalue.partition("\n")[0]
    return ": ".join(filter(None, (error.ename, error.evalue[:_MAX_ERROR_CHARS])))


def format_hosts_of(locations: RankLocations, ranks: Iterable[int]) -> str:
    """Format the hosts that ranks are on.

    Empty if one is unknown, or if they are all of several hosts.

    >>> format_hosts_of(RankLocations(hosts={0: "host0", 1: "host1", 2: "host2"}), (1, 2))
    'host[1-2]'
    """
    hosts = [locations.hosts.get(rank) for rank in ranks]
    known = [host for host in hosts if host is not None]
    if len(known) < len(hosts) or (len(known) > 1 and set(known) == set(locations.hosts.values())):
        return ""
    # The ranks before it identify the hosts of a long list.
    return format_hosts_short(known)


def format_hosts_short(hosts: Sequence[str]) -> str:
    """Format hosts briefly: a long list becomes a count.

    >>> format_hosts_short(["host0", "host0", "host1"]), format_hosts_short([f"node-{'abcdefg'[at]}" for at in range(7)])
    ('host[0-1]', '7 hosts')
    """
    named = format_hosts(hosts)
    return named if len(named) <= _MAX_HOSTS_CHARS else f"{len(set(hosts))} hosts"


def format_seconds(seconds: float) -> str:
    """Format a duration with two or three digits.

    >>> [format_seconds(s) for s in (0.004, 0.21, 1.44, 23.4, 200.0)]
    ['4 ms', '0.21 s', '1.4 s', '23 s', '3 min 20 s']
    """
    if seconds < 0.095:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 0.995:
        return f"{seconds:.2f} s"
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    return f"{whole} s" if whole < 60 else f"{whole // 60} min {whole % 60} s"


def format_delay(seconds: float) -> str:
    """Format a duration that is often below a millisecond.

    >>> format_delay(0.00042), format_delay(0.05), format_delay(1.44)
    ('0.4 ms', '50 ms', '1.4 s')
    """
    return f"{1000 * seconds:.1f} ms" if seconds < 0.00995 else format_seconds(seconds)


def join_words(words: Sequence[str]) -> str:
    """Join words as in a sentence.

    >>> join_words(["jax", "mhnb", "flax"])
    'jax, mhnb and flax'
    """
    return " and ".join(filter(None, [", ".join(words[:-1]), *words[-1:]]))


# -- shared styles


QUIET_STYLE = "opacity:.65"
STATE_COLORS = {
    "failed": "#dd4a3d",
    "waiting": "#e69f00",
    "stopped": "#56b4e9",
    "running": "#0072b2",
    "ended": "#009e73",
    "unknown": "#8c8c8c",
}
"""The one colour of each state, for lines and signs; the style sheet has a shade of `failed` and `ended` for text.

A sign or a word always says the same. A missing rank has the colour of a failed one, since both need the user; what is not right
yet, or differs, has that of a waiting one. `unknown` is also what has no state.
"""
FAILED_CLASS = "mhnb-failure"
"""Of a line in the colour of what failed, which is that of errors where the page has one."""
DIFFERS_TINT = "rgba(230,159,0,.25)"
CHANGED_STYLE = f"background-color:{DIFFERS_TINT};text-decoration:underline;text-underline-offset:2px"
"""Style of a word that differs; underlined too, for users who do not see the colour."""
GRID_STYLE = "display:grid;grid-template-columns:repeat(auto-fill,minmax(14em,1fr));gap:6px;margin-top:3px"
GRID_CELL_STYLE = "border:1px solid rgba(128,128,128,.45);padding:3px 6px;min-width:0"

HOST_COLORS = ("#6090fc", "#909c00", "#7848b4", "#cc789c", "#246c6c", "#9c4800")
"""None is the colour of a state. Colour-blind users can distinguish them on white and on black, and the host's name is beside them."""
_DIGITS = re.compile(r"(\d+)$")

TICK_CLASS = "mhnb-right"
BAR_CLASS = "mhnb-bar"
"""Of a block with a line in the color of its state or host on its left."""
_OUTPUT = ".jp-OutputArea-output>.mhnb"
_EDGE_CSS = (
    # Text begins where JupyterLab's own outputs begin, and a block's line is left of that edge.
    f"{_OUTPUT}{{padding-left:8px}}{_OUTPUT}>.{BAR_CLASS}{{margin-left:-8px!important;padding-left:5px!important}}"
)
LOOK_CSS = (
    # Titles are larger and never bold; bold is for words that matter in a line.
    ".mhnb{--mhnb-body:var(--jp-ui-font-size1,13px);--mhnb-title:calc(var(--mhnb-body) + 3px);--mhnb-quiet:calc(var(--mhnb-body) - 1px);"
    "--mhnb-strong:bold;--mhnb-plain:normal;"
    + "".join(f"--mhnb-{state}:{color};" for state, color in STATE_COLORS.items())
    + "--mhnb-failed:var(--jp-error-color1,#c62828);font-size:var(--mhnb-body)}.vscode-dark .mhnb{--mhnb-failed:#f48771}"
    ".mhnb :is(pre,table,code){font-size:inherit}"
    ".mhnb .mhnb-title{font-size:var(--mhnb-title);font-weight:var(--mhnb-plain)}"
    # Inline styles carry the opacity. In preformatted text a smaller size would break the columns.
    f'.mhnb [style*="{QUIET_STYLE}"]:not(pre *),.mhnb .mhnb-small{{font-size:var(--mhnb-quiet)}}'
    ".mhnb .mhnb-table th{font-weight:var(--mhnb-plain)}"
    f".mhnb .mhnb-table th[scope=col]:not([aria-sort]){{{QUIET_STYLE};font-size:var(--mhnb-quiet)}}"
    ".mhnb .mhnb-bad{color:var(--mhnb-failed)}"
    f".mhnb .{FAILED_CLASS}{{border-color:var(--mhnb-failed)!important}}"
    # Mixed with the text's own colour, for contrast on light and on dark. Without a style sheet the tick has that of the text.
    f".mhnb .{TICK_CLASS}{{color:color-mix(in srgb,var(--mhnb-ended) 70%,currentcolor)}}"
)
"""The sizes of text, the colours of states, and what they are for. It is the beginning of every style sheet of mhnb."""
_CSS = (
    ".mhnb pre{font-family:var(--jp-code-font-family,monospace)!important}.mhnb summary::marker{color:var(--mhnb-unknown)}"
    # nbconvert's classic page makes it a block without its triangle. The height is that of a target that is easy to hit.
    ".mhnb summary{display:list-item;padding-block:3px}"
    ".mhnb summary:focus-visible,.mhnb [tabindex]:focus-visible,.mhnb button:focus-visible"
    "{outline:2px solid var(--jp-brand-color1,#0072b2)!important;outline-offset:1px}"
)
ANSI_CSS = "".join(
    f".mhnb pre :is(.ansi-{name}-fg,.ansi-{name}-intense-fg){{color:color-mix(in srgb,{value} 70%,currentcolor)}}"
    for name, value in (
        ("red", "#d9534f"), ("green", "#2f9e5a"), ("yellow", "#b8860b"),
        ("blue", "#4a86d8"), ("magenta", "#b565b5"), ("cyan", "#2b9bab"),
    )
) + ".mhnb [class*=-intense-fg]{font-weight:var(--mhnb-strong)}"  # fmt: skip
"""Mixed with the text's own colour, so that they have contrast on light and on dark: the colours of nbconvert have not."""

_RANK_TABLE_CSS = ".mhnb .mhnb-run :is(th,td){padding:1px 10px 1px 0;border:0;text-align:right;vertical-align:middle}"
"""For tables of many cells, which look like all tables, but would otherwise store the same style in each cell."""

JUMP_CSS = (
    ".jp-Cell .mhnb .mhnb-jump[onclick]{all:unset;display:block!important;position:absolute;inset:0;cursor:pointer;"
    "border-bottom:1px solid}"
)
"""Reveals the button over a line's number where it can work: in a cell whose lines can be found, and with its script.

The style sheet of a trusted cell also applies to cells that are not trusted, which have lost their scripts.
"""

STRIP_STYLE = "display:flex;flex-wrap:wrap;align-items:flex-start"
"""Style of outputs side by side, each as wide as it needs."""
STRIP_IMAGE_WIDTH = 320
"""Maximum width of an image in a strip where there is no style sheet, in pixels: four fit a wide page, two a narrow one."""
PICTURE_CLASS, STRIP_CLASS = "mhnb-pic", "mhnb-pics"
_PICTURES_CSS = (
    # A click on the image, or Enter, changes between the width that there is room for and the image's own.
    f".mhnb .{PICTURE_CLASS}>summary{{display:inline-block;list-style:none;padding:0;cursor:zoom-in}}"
    f".mhnb .{PICTURE_CLASS}>summary::-webkit-details-marker{{display:none}}"
    f".mhnb .{PICTURE_CLASS}[open]{{overflow-x:auto}}.mhnb .{PICTURE_CLASS}[open]>summary{{cursor:zoom-out}}"
    f".mhnb .{PICTURE_CLASS}[open] img{{max-width:none!important}}"
    f".mhnb .{STRIP_CLASS}>:has(.{PICTURE_CLASS}[open]){{flex-basis:100%!important;max-width:100%!important}}"
)
_STRIP_CSS = "".join(
    # The share of the widest page, of a narrow one, and all of a very narrow one: a large factor makes a comparison of a difference.
    f".mhnb .{STRIP_CLASS}{count}>*{{max-width:max({share}%,min(47.5%,(900px - 100%)*999),min(100%,(480px - 100%)*999))!important}}"
    for count, share in ((2, 47.5), (3, 31.5), (4, 23.5))
)
"""A strip of images: each as wide as it is, limited so that all, or four, are side by side on a wide page and two on a narrow one."""

LAST_LINE_CLASS = "mhnb-last"
_LAST_LINE_CSS = (
    f".mhnb .{LAST_LINE_CLASS}{{display:inline-block;max-width:calc(100% - 18em);overflow:hidden;text-overflow:ellipsis;"
    "white-space:nowrap;vertical-align:bottom;font-family:monospace}"
    # Many folds are closer together, each still high enough to hit.
    f".mhnb summary:has(>.{LAST_LINE_CLASS}){{line-height:1.3;min-height:18px}}"
)
"""For the last line of an output that is folded."""

TABS_CSS = (
    "@supports selector(::details-content){{"
    ".{uid}{{display:flex;flex-wrap:wrap;gap:0 2px}}"
    ".{uid}>details{{display:contents}}"
    ".{uid}>details::details-content{{order:1;width:100%}}"
    ".{uid}>details>summary{{list-style:none;padding:2px 10px;border-bottom:2px solid transparent}}"
    ".{uid}>details>summary::-webkit-details-marker{{display:none}}"
    ".{uid}>details[open]>summary{{border-bottom-color:var(--jp-brand-color1,#0072b2);pointer-events:none}}"
    ".{uid}>details>div{{border:0!important;padding-left:0!important;margin-left:0!important}}"
    # In forced-colors mode transparent borders are drawn, so every tab would look open.
    "@media (forced-colors:active){{.{uid}>details:not([open])>summary{{border-bottom-color:Canvas}}}}"
    "}}"
)
"""Turns the `<details>` inside `uid` into tabs. Without it they are a list of items that open and close."""


def format_strip_item_style(*, is_image: bool) -> str:
    """Format the style of one output in a strip."""
    width = f"{STRIP_IMAGE_WIDTH}px" if is_image else "100%"
    # Not `gap`, which an untrusted notebook drops.
    return f"flex:0 1 auto;min-width:0;max-width:{width};margin:0 12px 8px 0"


def format_ranks_label(ranks: Sequence[int]) -> str:
    """Format ranks as a label; a shortened one has a tooltip."""
    label, all_ranks = describe_many_ranks(ranks), describe_ranks(ranks)
    return f"<b>{label}</b>" if label == all_ranks else f'<b title="{all_ranks}">{label}</b>'


def host_color(locations: RankLocations, ranks: Sequence[int]) -> str:
    """Return the colour of the ranks' host; grey if several or unknown."""
    host = locations.host_of(ranks)
    if host is None:
        return STATE_COLORS["unknown"]
    digits = _DIGITS.search(host)
    index = int(digits[1]) if digits else sum(map(ord, host))
    return HOST_COLORS[index % len(HOST_COLORS)]


def format_sign(sign: str) -> str:
    """Format a sign before a text."""
    # A font that lacks a sign is replaced by one whose glyph may be wider than its place.
    look = f'class="{TICK_CLASS}"' if sign == "✓" else 'style="padding-right:.3em"'
    return f"<span {look}>{sign}</span>"


def format_fold(label: str, inner: str, *, is_open: bool = False, style: str = "") -> str:
    """Format HTML that a click shows, below a quiet label.

    Args:
        label: as HTML.
        inner: what is shown.
        is_open: whether it is shown from the start.
        style: more style of the label.
    """
    more = f";{style}" if style else ""
    summary = f'<summary style="cursor:pointer;{QUIET_STYLE}{more}">{label}</summary>'
    return f"<details{' open' if is_open else ''}>{summary}{inner}</details>"


def wrap_in_scroller(html: str) -> str:
    """Wrap a wide table so that it scrolls, also by keyboard."""
    return f'<div tabindex="0" style="overflow-x:auto">{html}</div>'


def wrap_html(body: str, *, css: str = "") -> str:
    """Wrap a view's HTML in its outer element and style sheet."""
    ansi = ANSI_CSS if "ansi-" in body else ""
    table = _RANK_TABLE_CSS if "mhnb-run" in body else ""
    last = _LAST_LINE_CSS if LAST_LINE_CLASS in body else ""
    jump = JUMP_CSS if "mhnb-jump" in body else ""
    pictures = _PICTURES_CSS if PICTURE_CLASS in body else ""
    strips = _STRIP_CSS if STRIP_CLASS in body else ""
    return f'<div class="mhnb"><style>{LOOK_CSS}{_CSS}{_EDGE_CSS}{ansi}{table}{last}{jump}{strips}{pictures}{css}</style>{body}</div>'


# -- unique display ids


# Created once, because random bytes need a system call and every cell needs an id.
_PREFIX, _COUNTER = secrets.token_hex(6), count(1)


def new_uid() -> str:
    """Return the next id; safe to call from any thread."""
    return f"mhnb-{_PREFIX}-{next(_COUNTER)}"
