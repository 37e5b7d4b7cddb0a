"""Where a notebook cell runs in auto mode, and where a cell stops for the user."""

from __future__ import annotations

import pytest

from mhnb.core.cell_request import (
    check_breakpoints,
    check_guard,
    guard_argument,
    make_debug_mode,
    parse_breakpoints,
    resolve_stop_ranks,
    route_cell,
)
from mhnb.core.debugging import DebugRequest
from mhnb.core.messages import Breakpoint, DebugMode
from mhnb.errors import InvalidRequest


@pytest.mark.parametrize(
    ("source", "route"),
    [
        ("x = 1", "ranks"),
        ("%%time\nx = 1", "ranks"),
        ("%%bash\nls", "ranks"),
        ("!ls", "ranks"),
        ("# only a comment", "here"),
        ("", "here"),
        ("%mhjax status", "here"),
        ("# why\n%load_ext mhnb\n%mhjax start -n 2", "here"),
        ("%load_ext autoreload", "ranks"),
        ("%load_ext autoreload\n%autoreload 2\nimport helpers", "ranks"),
        ("%load_ext", "ranks"),
        ("%%mhjax --ranks 0\nx", "here"),
        ("%%local\nx = 1", "local"),
        ("\n%%local  \nx = 1", "local"),
        ("print('%mhjax status')", "ranks"),
        ("x = %mhjax pull x", "here"),
        ("# two\nx, y = %mhjax pull x y --each\n%mhjax status", "here"),
        ('d["x"] = %mhjax pull x', "here"),
        ("x: int = %mhjax pull x", "here"),
        ("x = [" + "1, " * 50_000 + "]", "ranks"),
        ("text = '= %mhjax'", "ranks"),
        ("print('= %mhjax status')", "ranks"),
        ("y = a %mhjax", "ranks"),
        ("left = %time 1", "ranks"),
        ("# look\n%debug", "here"),
        ("%debug f(x)", "ranks"),
        ("x = 1\n%debug", "ranks"),
    ],
)
def test_cell_is_routed(source: str, route: str) -> None:
    """A cell runs on the ranks unless it has a command of mhnb or is marked as local."""
    assert route_cell(source) == route


def test_a_mixed_cell_is_refused() -> None:
    """One part of the cell belongs to the notebook and the other to the ranks, so nothing runs."""
    for line in ("%mhjax pull x", "x = %mhjax pull x"):
        with pytest.raises(InvalidRequest, match="separate cell"):
            route_cell(f"{line}\nprint(x)")


# -- where a cell stops


@pytest.mark.parametrize(
    ("spec", "cell_ranks", "expected"),
    [
        ("", None, (0, 1, 2, 3)),
        ("", "1,3", (1, 3)),
        ("all", "1,3", (1, 3)),
        ("2", None, (2,)),
        ("3,1", "1-3", (1, 3)),
        ("0-3", "0-3", (0, 1, 2, 3)),
    ],
)
def test_stop_ranks_are_among_the_cells(spec: str, cell_ranks: str | None, expected: tuple[int, ...]) -> None:
    """Without a rank set, and with `all`, every rank of the cell stops."""
    assert resolve_stop_ranks(spec, cell_ranks, 4) == expected


@pytest.mark.parametrize(
    ("spec", "cell_ranks", "message"),
    [
        (
            "0,2-3",
            "2",
            "--debug 0,2-3: the cell does not run on ranks 0,3, only on rank 2\n  Fix: %%mhjax --ranks 2 --debug",
        ),
        ("4", None, "--debug '4': unknown rank 4; this cluster has ranks 0-3"),
        ("x", None, "--debug 'x': expected ranks such as 0,2-3 or all; got 'x'"),
        ("2-1", None, "--debug '2-1': the range 2-1 is reversed; write 1-2"),
        ("0", "9", "--ranks '9': unknown rank 9"),
    ],
)
def test_other_stop_ranks_are_refused(spec: str, cell_ranks: str | None, message: str) -> None:
    """The error names the argument that is wrong, and the ranks of the cell."""
    with pytest.raises(InvalidRequest) as error:
        resolve_stop_ranks(spec, cell_ranks, 4)
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("12", [Breakpoint(12)]),
        (" 12  if  rank == 2 ", [Breakpoint(12, "rank == 2")]),
        ("4,9 12 if(x)", [Breakpoint(4, "(x)"), Breakpoint(9, "(x)"), Breakpoint(12, "(x)")]),
        ("4 4", [Breakpoint(4)]),
        ("3 if 'if' in x", [Breakpoint(3, "'if' in x")]),
        ("3 if a if b else c", [Breakpoint(3, "a if b else c")]),
    ],
)
def test_breakpoints_are_parsed(text: str, expected: list[Breakpoint]) -> None:
    """Lines, and a condition that is for all of them."""
    assert list(parse_breakpoints(text)) == expected


@pytest.mark.parametrize("text", ["x", "0", "-1", "12 rank == 2", "12, rank == 2", "12if x", "if x", "1.5", "٣"])
def test_other_breakpoints_are_refused(text: str) -> None:
    """The error has a line that works, also for the form of pdb."""
    with pytest.raises(InvalidRequest, match=r"\n  Fix: %%mhjax --break '12 if rank == 2'$"):
        parse_breakpoints(text)


@pytest.mark.parametrize(
    ("condition", "fault", "at"),
    [
        ("rank = 2", "invalid syntax", 5),
        ("(rank", "'(' was never closed", 0),
        ("ünï == )", "unmatched ')'", 7),
        ("rank ==", "invalid syntax", 7),
        ("x; y", "invalid syntax", 1),
    ],
)
def test_condition_is_compiled_at_once(condition: str, fault: str, at: int) -> None:
    """A rank would report the error only when it comes to the line. A mark is below the place, in characters."""
    with pytest.raises(InvalidRequest) as error:
        parse_breakpoints(f"3 if {condition}")
    head, shown, mark = str(error.value).split("\n")
    assert fault in head
    assert (shown, mark) == (f"    {condition}", f"    {' ' * at}^")


def test_condition_may_not_be_empty() -> None:
    """Nor have a null byte, which Python refuses in different ways."""
    with pytest.raises(InvalidRequest, match="the condition after `if` is missing"):
        parse_breakpoints("3 if ")
    with pytest.raises(InvalidRequest, match="is not a Python expression"):
        parse_breakpoints("3 if x\0")


@pytest.mark.parametrize("line", [2, 4, 5])
def test_breakpoint_at_a_line_of_code(line: int) -> None:
    """Lines are Python's: they end at line ends only, of whatever system, and not at other separators in a text."""
    check_breakpoints([Breakpoint(line)], "\n\nx = 1\r\n\r\ny = '\x0c\u2028'\nz = 1\n\n", 2)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (1, "has no code in line 1; its code is in lines 2-5"),
        (3, "cannot stop at line 3, which is blank"),
        (4, "cannot stop at line 4, which is a comment"),
        (6, "has no code in line 6; its code is in lines 2-5"),
    ],
)
def test_breakpoint_elsewhere_is_refused(line: int, message: str) -> None:
    """The cell has no such line, or nothing can run there."""
    with pytest.raises(InvalidRequest, match=rf"^--break {line}: this cell {message}\."):
        check_breakpoints([Breakpoint(2), Breakpoint(line)], "x = 1\n \n  # why\ny = 2\n\n", 2)


@pytest.mark.parametrize(("old", "name"), [("before", "lockstep"), ("after", "parity"), ("off", "off")])
def test_older_names_of_guards_work(old: str, name: str) -> None:
    """They are read, and no message has them."""
    assert (check_guard(old), guard_argument(old)) == (name, name)
    with pytest.raises(InvalidRequest, match=r"^--guard 'on': expected lockstep, parity or off$"):
        check_guard("on")


@pytest.mark.parametrize(
    ("errors", "mode"),
    [
        ((), DebugMode(is_replay=True)),
        (("ValueError",), DebugMode(is_replay=True)),
        (("NoKeyboard",), None),
        (("BreakpointRefused",), DebugMode("it did not stop when the cell first ran")),
    ],
)
def test_a_replay_repeats_a_refusal(errors: tuple[str, ...], mode: DebugMode | None) -> None:
    """A replay passes over breakpoints, unless the cell ended at one that could not stop it."""
    assert make_debug_mode(DebugRequest(replayed_errors=frozenset(errors)), "", is_replay=True) == mode
