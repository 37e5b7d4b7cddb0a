"""Name cells in tracebacks, and find where in them errors were raised."""

from __future__ import annotations

import ast
import inspect
import linecache
import re
import sys
import threading
import traceback
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from difflib import SequenceMatcher
from itertools import groupby, islice
from pathlib import Path
from types import FrameType, FunctionType, TracebackType
from typing import Any
from zlib import crc32

from IPython.core.compilerop import CachingCompiler
from msgspec.structs import replace

from mhnb.core.cell_name import number_lines
from mhnb.core.error_site import REFUSED_MESH, ArrayFacts, ErrorSite, TreeFacts
from mhnb.core.guard.threads import UNKNOWN_THREAD, format_thread, kind_of
from mhnb.core.hang_report import CAPTURED_FILE, TIMED_FILES
from mhnb.errors import MhnbError
from mhnb.rank.execution.cell_names import CELL_FILE, CELL_NAMES, cell_file
from mhnb.rank.execution.exceptions import class_has, has_jax_base, is_jax_class, syntax_error_location, traceback_of
from mhnb.rank.execution.streams import CellThread

_MHNB_RANK_FOLDER = str(Path(__file__).parents[1])
_MAX_ARRAYS, _MAX_PARTS = 8, 1000
_MAX_SCOPES, _MAX_PATH_CHARS = 8, 60
"""Most frames of cells whose names are looked at, and characters of an expression that is shown."""
_TREES = (dict, list, tuple)
_LIBRARIES = frozenset(("contextlib", "functools", "jax", "jaxlib", "mhnb", "numpy"))
"""Libraries between the cell and an error of JAX. If other code is there, the cell's own names do not explain the error."""


_TIMED_FILE = TIMED_FILES[0]
_TIME_MAGIC, _CAPTURE_MAGIC = "%%time", "%%capture"
INNER_TEXT_MAGICS = (_TIME_MAGIC, _CAPTURE_MAGIC)
"""Magics that run the text below them as a text of its own, which is the cell's all the same."""
_MAX_PLAIN_FRAMES = 50
"""Most frames of a traceback that is drawn without its lines of code."""
_LIBRARY_FILE = re.compile(
    r"[/\\](?:site|dist)-packages[/\\](?P<name>\w+)|[/\\]lib(?:64)?[/\\]python3\.\d+[/\\](?!(?:site|dist)-packages)(?P<std>\w+)"
)
_TRACEBACK = "Traceback (most recent call last):\n"
_FOLDED = re.compile(r'^ *File "<(\d+) of (\w+)>".*\n', re.MULTILINE)


@dataclass(frozen=True, slots=True)
class RunningCell:
    """The cell that runs on this rank."""

    seq: int
    source: str
    began_s: float
    first_line: int = 1
    """The number that the notebook gives the first line of the source."""

    @property
    def file(self) -> str:
        """The cell's name in tracebacks."""
        return cell_file(self.seq)

    def owns_file(self, file: str) -> bool:
        """Return whether a file name is this cell's, also under `%%time`."""
        if file in TIMED_FILES:
            return self.source.startswith(_TIME_MAGIC)
        return file == self.file or (file == CAPTURED_FILE.format(self.seq) and self.source.startswith(_CAPTURE_MAGIC))

    def find_line(self, number: int | None) -> tuple[int | None, str | None]:
        """Return a line's number and text; both None if it is missing."""
        lines = self.source.splitlines()
        if number is None or not 0 <= number - self.first_line < len(lines):
            return None, None
        return number, lines[number - self.first_line].strip()


class CellCompiler(CachingCompiler):
    """Names cells by their number, and parses each once.

    ipykernel's own compiler hashes the text in Python, which costs more than most cells.
    """

    running = 0
    """mhnb's number of the running cell; 0 before the first."""
    execution_count = 0
    """The running cell's number in `In` and `Out`."""
    inner_first_line = 1
    """The number that the notebook gives the first line of the text below `%%time` or `%%capture`."""
    _is_inner = False
    _parsed_ahead: tuple[str, ast.AST] | None = None

    def parse_ahead(self, source: str, file: str) -> bool:
        """Parse a cell before it runs; return False if not Python."""
        self._parsed_ahead = None
        try:
            self._parsed_ahead = source, super().ast_parse(source, file)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return False
        return True

    def ast_parse(self, source: str, filename: str = "<unknown>", symbol: str = "exec") -> ast.AST:
        """Parse, or return the tree parsed ahead once: callers may transform it."""
        ahead, self._parsed_ahead = self._parsed_ahead, None
        if ahead is not None and ahead[0] == source and symbol == "exec":
            return ahead[1]
        # `%%time` and `%%timeit` pass no file name.
        if filename == "<unknown>":
            filename, source = _TIMED_FILE, number_lines(source, self.inner_first_line)
        elif self._is_inner:
            source = number_lines(source, self.inner_first_line)
        return super().ast_parse(source, filename, symbol)

    def cache(self, transformed_code: str, number: int = 0, raw_code: str | None = None) -> str:
        """Keep the text of a cell, or of its inner cell.

        `%%capture` runs such an inner cell, and IPython gives it the next number.
        """
        self._is_inner = self.running != 0 and number != self.execution_count
        if self._is_inner:
            transformed_code = number_lines(transformed_code, self.inner_first_line)
        name: str = super().cache(transformed_code, number if self.running == 0 else self.running, raw_code)
        return name

    def format_code_name(self, name: str) -> tuple[str, str] | None:
        """Return a cell's label and name: `Cell In[7]`, or mhnb's `Cell 12`."""
        seq = self._filename_map.get(name)
        if seq is None:
            return None
        label, _, number = _format_cell(seq).partition(" ")
        return label, number

    def get_code_name(self, raw_code: str, transformed_code: str, number: int) -> str:
        """Return the file name of a cell, or of its inner cell."""
        del raw_code, transformed_code
        return CAPTURED_FILE.format(self.running) if self._is_inner else cell_file(number)


def align_lines(source: str, transformed: str) -> str:
    r"""Restore the cell's line numbers in its transformed text.

    IPython drops empty lines, and joins those of one command.

    >>> align_lines("\n\nx = 1\n!ls \\\n -l\n1 / 0", "x = 1\nrun('ls  -l')\n1 / 0\n").splitlines()
    ['', '', 'x = 1', "run('ls  -l')", '', '1 / 0']
    """
    before, after = source.splitlines(), transformed.splitlines()
    if len(before) <= len(after):
        return transformed
    aligned: list[str] = []
    for _, first, end, at, stop in SequenceMatcher(None, before, after, autojunk=False).get_opcodes():
        aligned += [*after[at:stop], *[""] * (end - first - (stop - at))]
    text = "\n".join(aligned) + "\n"
    return text if _parse(text) == _parse(transformed) else transformed


def _parse(text: str) -> str:
    try:
        return ast.dump(ast.parse(text))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ""


def find_cell_line(error: BaseException, cell: RunningCell) -> tuple[int | None, str | None]:
    """Return line and text of an error's innermost frame in the cell."""
    file, number = syntax_error_location(error)
    if file is not None and number is not None and cell.owns_file(file):
        return cell.find_line(number)
    lines = [part.tb_lineno for part in _iterate_traceback(traceback_of(error)) if cell.owns_file(_file(part))]
    return cell.find_line(lines[-1] if lines else None)


def find_inner_line(error: BaseException, cell: RunningCell) -> tuple[str, str]:
    """Return an error's innermost line, if an earlier cell's: place, text.

    Both are empty if the innermost line of all cells is in the running one.
    """
    parts = [
        part for part in _iterate_traceback(traceback_of(error)) if cell.owns_file(_file(part)) or _is_of_cell(part)
    ]
    if not parts or cell.owns_file(_file(parts[-1])):
        return "", ""
    return name_innermost_line(traceback_of(error)), _source_of_line(parts[-1])


def _is_of_cell(part: TracebackType) -> bool:
    return CELL_FILE.fullmatch(_file(part)) is not None


def find_error_site(error: BaseException) -> ErrorSite:
    """Return where an error was raised."""
    site = _find_site(error)
    # A class of the user's could run code here.
    mesh = vars(error).get(REFUSED_MESH) if type(error) in (AssertionError, ValueError) else None
    return site if mesh is None else replace(site, mesh=mesh)


def _find_site(error: BaseException) -> ErrorSite:
    frames = list(_iterate_traceback(traceback_of(error)))
    if not frames:
        return ErrorSite()
    innermost = frames[-1].tb_frame
    module, function = _module_name(innermost), innermost.f_code.co_qualname
    in_cells = [index for index, part in enumerate(frames) if _is_of_cell(part)]
    below = frames[in_cells[-1] + 1 :] if in_cells else []
    if not below or any(_top_package(part.tb_frame) not in _LIBRARIES for part in below):
        return ErrorSite(module, function)
    part = frames[in_cells[-1]]
    expression = _source_of_expression(part)
    # For `a, b = x` Python marks only the left side.
    pieces = (expression, _source_of_line(part)) if expression else ()
    values = {text: value for piece in pieces for text, value in _find_values_in(piece, part.tb_frame)}
    shardings = [text for text, value in values.items() if _is_sharding(value)]
    values = {text: value for text, value in values.items() if text not in shardings}
    names = {text: class_has(type(value), "addressable_shards") for text, value in values.items()}
    arrays = {text: _describe_array(value) for text, value in values.items() if _is_plain_array(value)}
    trees = dict[str, TreeFacts]()
    for text, value in values.items():
        if _is_tree(value) and (found := _describe_tree(text, value)) is not None:
            trees[text], first = found
            arrays[trees[text].array] = _describe_array(first)
    arrays, trees = dict(islice(arrays.items(), _MAX_ARRAYS)), dict(islice(trees.items(), _MAX_ARRAYS))
    is_top_level = part.tb_frame.f_code.co_name == "<module>"
    callers = [each.tb_frame.f_code.co_qualname for each in frames[:-1]]
    # A newer JAX iterates in a function that `__iter__` calls.
    caller = callers[-2] if len(callers) > 1 and callers[-1].endswith(".__iter__") else callers[-1]
    entry = _module_name(below[0].tb_frame)
    return ErrorSite(
        module,
        function,
        expression,
        names,
        is_top_level,
        arrays,
        trees=trees,
        caller=caller,
        entry=entry,
        shardings=shardings[:_MAX_ARRAYS],
    )


def _describe_tree(text: str, tree: object) -> tuple[TreeFacts, Any] | None:
    """Describe a container, with its first global array; None without one."""
    leaves = _list_leaves(text, tree)
    spread = [(path, leaf) for path, leaf in leaves if _is_plain_array(leaf) and not leaf.is_fully_addressable]
    if not spread:
        return None
    devices = {_describe_array(leaf).device_order for _, leaf in spread}
    path, first = spread[0]
    return TreeFacts(path, len(spread), is_uniform=len(devices) == 1 and len(spread) == len(leaves)), first


def _list_leaves(text: str, tree: Any) -> list[tuple[str, Any]]:
    """Return a container's values with their paths; none if too large.

    Containers count too: a few lists that contain each other twice, or one that contains itself, have parts without end.
    """
    leaves, waiting, count = list[tuple[str, Any]](), [(text, tree)], 0
    while waiting:
        path, value = waiting.pop()
        if not _is_tree(value):
            leaves += [(path, value)] if value is not None else []
            continue
        count += len(value)
        if count > _MAX_PARTS:
            return []
        # Another thread may change it meanwhile.
        items = list(value.items() if type(value) is dict else enumerate(value))
        # Only a key of these types has a text to name its part by; any other part counts as a value of another kind.
        parts = [(f"{path}[{key!r}]", part) if type(key) in (str, int) else (path, key) for key, part in items]
        waiting += reversed(parts)
    return leaves


def find_array_names(arrays: Iterable[object], frame: FrameType | None) -> dict[int, str]:
    """Return the user's expressions for arrays, by `id`.

    The names that the innermost line of a cell uses come first, those of the notebook last. No code of the user's runs.

    Args:
        arrays: those to name; an array without a name is left out.
        frame: the innermost one of the stack.
    """
    wanted = {id(array) for array in arrays}
    found: dict[int, str] = {}
    for line, scope in _list_scopes(frame):
        words = re.findall(r"\w+", line)
        names = [name for name in scope if type(name) is str and name[:1] != "_" and name not in ("In", "Out")]
        # Values come before parts of containers.
        names.sort(key=lambda name: (name not in words, _is_tree(scope[name])))
        for name in names:
            if len(found) == len(wanted):
                return found
            for path, leaf in _list_leaves(name, scope[name]):
                if id(leaf) in wanted and len(path) <= _MAX_PATH_CHARS:
                    found.setdefault(id(leaf), path)
    return found


def _list_scopes(frame: FrameType | None) -> list[tuple[str, dict[str, Any]]]:
    """Return line and variables of the cells' frames, then the notebook's variables."""
    scopes, namespace = list[tuple[str, dict[str, Any]]](), dict[str, Any]()
    while frame is not None and len(scopes) < _MAX_SCOPES:
        code = frame.f_code
        if CELL_FILE.fullmatch(code.co_filename) or code.co_filename in TIMED_FILES:
            namespace = frame.f_globals
            # The body of a class may have a mapping of the user's own.
            if code.co_flags & inspect.CO_OPTIMIZED or frame.f_locals is namespace:
                scopes.append((linecache.getline(code.co_filename, frame.f_lineno), dict(frame.f_locals)))
        frame = frame.f_back
    return [*scopes, ("", dict(namespace))]


def _is_plain_array(value: object) -> bool:
    return is_jax_class(type(value), "ArrayImpl")


def _describe_array(array: Any) -> ArrayFacts:
    sharding = array.sharding
    mesh = getattr(sharding, "mesh", None)
    kinds = getattr(mesh, "axis_types", ())
    explicit = any(getattr(kind, "name", "") == "Explicit" for kind in kinds)
    listed = sharding.device_set if mesh is None else mesh.devices.flat
    ids = [device.id for device in listed]
    return ArrayFacts(
        tuple(array.shape),
        bool(array.is_fully_addressable),
        hasattr(sharding, "spec"),
        explicit,
        device_count=len(ids),
        device_set=crc32(repr(sorted(ids)).encode()),
        device_order=crc32(repr(ids).encode()),
        is_bool=array.dtype == bool,
        is_replicated=bool(array.is_fully_replicated),
        has_shard=bool(sharding.addressable_devices),
    )


def find_user_location(error: BaseException) -> tuple[str, str, ErrorSite]:
    """Return place, line text and site of an error outside cells.

    The innermost line of a cell counts, else that of a file outside the libraries. Without either, both texts are empty.
    """
    frames = [
        part
        for part in _iterate_traceback(traceback_of(error))
        if linecache.getline(_file(part), part.tb_lineno).strip()
    ]
    cells = [part for part in frames if _is_of_cell(part)]
    own = [part for part in frames if _top_package(part.tb_frame) not in _LIBRARIES]
    if not (candidates := cells or own):
        return "", "", find_error_site(error)
    part = candidates[-1]
    named = CELL_FILE.fullmatch(_file(part))
    name = CELL_NAMES.format_name(int(named[1])) if named else Path(_file(part)).name
    return f"{name}, line {part.tb_lineno}", _source_of_line(part), find_error_site(error)


def _file(part: TracebackType) -> str:
    return part.tb_frame.f_code.co_filename


def _iterate_traceback(part: TracebackType | None) -> Iterator[TracebackType]:
    while part is not None:
        yield part
        part = part.tb_next


def _top_package(frame: FrameType) -> str:
    return _module_name(frame).partition(".")[0]


def _module_name(frame: FrameType) -> str:
    # A cell may set its module's name to anything.
    name = dict.get(frame.f_globals, "__name__", "")
    return name if type(name) is str else ""


def _source_of_line(traceback: TracebackType) -> str:
    return linecache.getline(_file(traceback), traceback.tb_lineno).strip()


def _source_of_expression(traceback: TracebackType) -> str:
    """Return the source text that a frame was evaluating."""
    at = traceback.tb_lasti // 2  # code units of two bytes
    first, last, begin, end = next(islice(traceback.tb_frame.f_code.co_positions(), max(at, 0), None), (None,) * 4)
    # Columns count bytes. Any code may have made the traceback, or changed the kept lines.
    lines = [line.encode("utf-8", "replace") for line in linecache.getlines(_file(traceback))]
    if first is None or last is None or begin is None or end is None or not 1 <= first <= last <= len(lines):
        return ""
    piece = lines[first - 1 : last]
    piece[-1] = piece[-1][:end]
    piece[0] = piece[0][begin:]
    return b"".join(piece).decode("utf-8", "replace")


def _find_values_in(piece: str, frame: FrameType) -> Iterator[tuple[str, Any]]:
    """Yield names and parts in code that are arrays, containers or shardings."""
    try:
        tree = ast.parse(piece)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return
    # A local name hides the global one even while it has no value, as that of a comprehension after its end.
    hidden = frame.f_code.co_varnames
    scope = {name: value for name, value in frame.f_globals.items() if name not in hidden} | frame.f_locals
    for node in ast.walk(tree):
        value = _look_up(node, scope)
        # Only the class is inspected: an object may compute its own attributes, or raise.
        kind = type(value)
        if class_has(kind, "__array__") or issubclass(kind, _TREES) or _is_sharding(value):
            yield ast.unparse(node), value


def _is_tree(value: object) -> bool:
    # `in` would compare with a class that may have an `__eq__` of its own.
    return any(type(value) is kind for kind in _TREES)


def _is_sharding(value: object) -> bool:
    return has_jax_base(type(value), "Sharding")


def _look_up(node: ast.AST, scope: Mapping[str, object]) -> object:
    """Return the value of a name or part, `a.b['c']`.

    No code of the value's class runs.
    """
    if isinstance(node, ast.Name):
        return scope.get(node.id)
    if isinstance(node, ast.Attribute):
        return inspect.getattr_static(_look_up(node.value, scope), node.attr, None)
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
        whole, key = _look_up(node.value, scope), node.slice.value
        if type(whole) is dict and type(key) in (str, int):
            return whole.get(key)
        if (type(whole) is list or type(whole) is tuple) and type(key) is int and key < len(whole):
            return whole[key]
    return None


def hide_own_frames(traceback: TracebackType | None) -> TracebackType | None:
    """Return the traceback without mhnb's frames: the error is the user's."""
    first: TracebackType | None = None
    last: TracebackType | None = None
    while traceback is not None:
        following = traceback.tb_next
        if not traceback.tb_frame.f_code.co_filename.startswith(_MHNB_RANK_FOLDER):
            if last is None:
                first = traceback
            else:
                last.tb_next = traceback
            last = traceback
        traceback = following
    if last is not None:
        last.tb_next = None
    return first


def format_frames(traceback: TracebackType | None) -> list[str]:
    """Format a traceback without code lines, with IPython's names of frames."""
    return [_format_frame(part) for part in _iterate_traceback(traceback)][-_MAX_PLAIN_FRAMES:]


def _format_frame(part: TracebackType) -> str:
    code, named = part.tb_frame.f_code, CELL_FILE.fullmatch(_file(part))
    where = f"{_format_cell(int(named[1]))}, line {part.tb_lineno}" if named else f"File {_file(part)}:{part.tb_lineno}"
    return where if code.co_name == "<module>" else f"{where}, in {code.co_name}"


def _format_cell(seq: int) -> str:
    """Format a cell as IPython does in tracebacks."""
    shown = CELL_NAMES.execution_count(seq)
    return f"Cell {seq}" if shown is None else f"Cell In[{shown}]"


def print_thread_error(args: threading.ExceptHookArgs) -> None:
    """Print the error that ended a cell's thread, in short.

    The text is the same on every rank. An error that no code of a cell leads to is printed as Python does.
    """
    error, thread = args.exc_value, args.thread
    if error is None or issubclass(args.exc_type, SystemExit) or not has_cell(args.exc_traceback):
        threading.__excepthook__(args)
        return
    known: CellThread | None = getattr(thread, "_mhnb_thread", None)
    if known is not None and known.number != UNKNOWN_THREAD:
        name = format_thread(known.number, {kind_of(known.number): known.label})
    else:
        name = f"thread {thread.name}" if thread is not None else "a thread"
    _print_folded(f"Exception in {name}", error, args.exc_traceback)


def print_unraisable(args: sys.UnraisableHookArgs) -> bool:
    """Print briefly what a finalizer or callback of a cell raised.

    Returns:
        Whether code of a cell leads to the error; if not, nothing is printed.
    """
    error = args.exc_value
    if error is None or not has_cell(args.exc_traceback):
        return False
    heading = args.err_msg or "Exception ignored in"
    if type(args.object) is FunctionType:
        heading = f"{heading} {args.object.__qualname__}"
    _print_folded(heading, error, args.exc_traceback)
    return True


def _print_folded(heading: str, error: BaseException, tb: TracebackType | None) -> None:
    print(f"{heading}:\n{format_folded(error, tb)}", end="", file=sys.stderr, flush=True)


def format_folded(error: BaseException, tb: TracebackType | None) -> str:
    """Format an error from the cell's first frame on; count library frames."""
    shown = traceback.TracebackException(type(error), error, tb)
    brief = isinstance(error, MhnbError)
    _fold_frames(shown, brief=brief)
    if brief:
        # It also fails the cell, whose report has the whole text.
        words = "\n".join(str(error).splitlines()[:2])
        lines = [_TRACEBACK, *shown.stack.format(), f"{type(error).__name__}: {words}\n"]
    else:
        lines = [*shown.format()]
    return _FOLDED.sub(_format_folded, "".join(lines))


def name_innermost_line(tb: TracebackType | None) -> str:
    """Return the innermost cell line as `In [3], line 9`; else empty."""
    parts = [part for part in _iterate_traceback(tb) if _is_of_cell(part)]
    return f"{CELL_NAMES.format_file(_file(parts[-1])).strip('<>')}, line {parts[-1].tb_lineno}" if parts else ""


def has_cell(tb: TracebackType | None) -> bool:
    """Return whether code of a cell is in a traceback."""
    return any(CELL_FILE.fullmatch(_file(part)) for part in _iterate_traceback(tb))


def _fold_frames(shown: traceback.TracebackException, *, brief: bool) -> None:
    """Drop frames above the cell's; fold library frames, or drop if brief."""
    frames = list(shown.stack)
    first = next((at for at, frame in enumerate(frames) if CELL_FILE.fullmatch(frame.filename)), 0)
    kept: list[traceback.FrameSummary] = []
    for library, run in groupby(frames[first:], key=lambda frame: _library_of(frame.filename)):
        same = list(run)
        if not library:
            kept += [_with_line(frame) for frame in same]
        elif library != "mhnb" and not brief:
            kept.append(traceback.FrameSummary(f"<{len(same)} of {library}>", 0, "", lookup_line=False, line=""))
    shown.stack = traceback.StackSummary.from_list(kept)
    for other in (shown.__cause__, shown.__context__, *(shown.exceptions or ())):
        if other is not None:
            _fold_frames(other, brief=brief)


def is_library_file(file: str) -> bool:
    """Return whether mhnb, Python or an installed package owns a file.

    >>> is_library_file(ast.__file__), is_library_file("<cell 3>")
    (True, False)
    """
    return file.startswith("<frozen ") or bool(_library_of(file))


def _library_of(file: str) -> str:
    if file.startswith(_MHNB_RANK_FOLDER):
        return "mhnb"
    found = _LIBRARY_FILE.search(file)
    return (found["name"] or found["std"]) if found else ""


def _with_line(frame: traceback.FrameSummary) -> traceback.FrameSummary:
    # Before it prints, Python forgets the text of code that is not in a file.
    line = linecache.getline(frame.filename, frame.lineno or 0).strip() or frame.line
    file = CELL_NAMES.format_file(frame.filename)
    return traceback.FrameSummary(file, frame.lineno, frame.name, lookup_line=False, line=line)


def _format_folded(found: re.Match[str]) -> str:
    return f"    … {found[1]} {'frame' if found[1] == '1' else 'frames'} inside {found[2]}\n"


def cut_library_frames(traceback: TracebackType | None) -> None:
    """Cut innermost frames of JAX and similar libraries, unless all are such."""
    last: TracebackType | None = None
    for part in _iterate_traceback(traceback):
        if _top_package(part.tb_frame) not in _LIBRARIES:
            last = part
    if last is not None:
        last.tb_next = None
