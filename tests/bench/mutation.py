"""How many small faults the tests catch: `python -m tests.bench.mutation`, or `make mutation`.

Each fault is one change of one line of the package: a comparison turned round, a bound off by one, a call left out, two arguments
swapped, or a constant changed. The seed chooses them, and `--faults FILE` keeps them, so that two commits can be compared.

Of each fault the tests of its module run first (its doctests, and the unit tests that import it or have its name), then the other unit
tests that reach it by imports, then those on real ranks, until one fails or the limit has passed. Files that `make timings` has measured
run in the order of their time. A test that fails without the fault, too, catches nothing. Tests of several machines and of the browser
are left out: two faults are tried at a time, and those parts exist once.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import Queue
from tempfile import TemporaryDirectory

import msgspec
import psutil

from tests.support.source import ROOT, read_package

__all__ = ["Fault", "apply", "find_faults"]

PARTS = ("core", "rank/guard", "rank/execution", "cluster", "transport", "view", "sharding")
_TURNED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
_MARK = "MHNB_MUTATION"
_TEST_LIMIT_S = 100
_EXIT_PASSED, _EXIT_BROKEN_CONFTEST, _EXIT_NOTHING_RAN = 0, 4, 5


class Fault(msgspec.Struct, frozen=True):
    """One change of one line."""

    path: str
    line: int
    kind: str
    old: str
    """The whole line, before."""
    new: str


class Outcome(msgspec.Struct, frozen=True):
    """What became of a fault: `caught`, `survived`, `undecided` after the limit, or `not there` in this commit."""

    fault: Fault
    verdict: str
    by: str
    seconds: float


# -- faults


class _Finder(ast.NodeVisitor):
    """Collects the faults of a module that fit on one line."""

    def __init__(self, path: str, text: str) -> None:
        self._path, self._lines = path, text.splitlines()
        self.faults: list[Fault] = []

    def _replace(self, kind: str, node: ast.expr | ast.stmt, new: str) -> None:
        # Two equal arguments can be swapped without a change.
        if node.lineno == node.end_lineno and new != ast.unparse(node):
            # Offsets of the syntax tree are bytes.
            line = self._lines[node.lineno - 1].encode()
            changed = (line[: node.col_offset] + new.encode() + line[node.end_col_offset :]).decode()
            self.faults.append(Fault(self._path, node.lineno, kind, line.decode(), changed))

    def visit_Assert(self, node: ast.Assert) -> None:
        """Leave out assertions: they state what cannot be otherwise."""

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        """Leave out annotations."""
        if node.value is not None:
            self.visit(node.value)

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        """Leave out decorators and annotations."""
        for default in [*node.args.defaults, *filter(None, node.args.kw_defaults)]:
            self.visit(default)
        for statement in node.body:
            self.visit(statement)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> None:
        """Do the same."""
        self.visit_FunctionDef(node)

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        """Leave out decorators and bases."""
        for statement in node.body:
            self.visit(statement)

    def visit_Compare(self, node: ast.Compare) -> None:
        """Turn a comparison round."""
        if len(node.ops) == 1:
            turned = ast.Compare(node.left, [_TURNED[type(node.ops[0])]()], node.comparators)
            self._replace("comparison", node, ast.unparse(turned))
        self.generic_visit(node)

    def visit_Expr(self, node: ast.Expr) -> None:
        """Leave a call out."""
        if isinstance(node.value, ast.Call):
            self._replace("call", node, "pass")
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        """Swap the first two arguments."""
        first_two = node.args[:2]
        if len(first_two) == 2 and not any(isinstance(argument, ast.Starred) for argument in first_two):
            swapped = ast.Call(node.func, [*reversed(first_two), *node.args[2:]], node.keywords)
            self._replace("arguments", node, ast.unparse(swapped))
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        """Change a bound by one, or a truth value."""
        if isinstance(node.value, bool):
            self._replace("constant", node, str(not node.value))
        elif isinstance(node.value, int):
            self._replace("bound", node, str(node.value + 1))
        elif isinstance(node.value, float):
            self._replace("constant", node, str(node.value * 10 or 1.0))

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        """Leave texts as they are: Python 3.11 does not know the places in them."""


def find_faults(path: str, text: str) -> list[Fault]:
    """List the faults that can be made in a module's text."""
    finder = _Finder(path, text)
    finder.visit(ast.parse(text))
    return finder.faults


def choose(tree: Path, seed: int, count: int) -> list[Fault]:
    """Choose faults, as many of each part and, where it has them, of each kind."""
    generator = random.Random(seed)  # noqa: S311 - not for secrets
    by_part: dict[str, dict[str, list[Fault]]] = {}
    for part in PARTS:
        by_kind = by_part[part] = defaultdict(list)
        for path in sorted((tree / "mhnb" / part).rglob("*.py")):
            for fault in find_faults(str(path.relative_to(tree)), path.read_text()):
                by_kind[fault.kind].append(fault)
    chosen: list[Fault] = []
    while len(chosen) < count:
        kinds = by_part[PARTS[len(chosen) % len(PARTS)]]
        fault = generator.choice(kinds[generator.choice(sorted(kinds))])
        if all((fault.path, fault.line) != (other.path, other.line) for other in chosen):
            chosen.append(fault)
    return chosen


def apply(fault: Fault, tree: Path) -> None:
    """Make a fault in a tree. Its line may have moved since it was found, and must still be the only one.

    Raises:
        LookupError: the line is not there any more, or not the only one.
    """
    path = tree / fault.path
    lines = path.read_text().splitlines()
    places = [at for at, line in enumerate(lines) if line == fault.old]
    if fault.line - 1 in places:
        places = [fault.line - 1]
    if len(places) != 1:
        msg = f"{fault.path}:{fault.line}: the line is {len(places)} times in this commit: {fault.old.strip()}"
        raise LookupError(msg)
    lines[places[0]] = fault.new
    path.write_text("\n".join(lines) + "\n")


# -- the order of the tests


def _imported(tree: ast.AST, names: set[str]) -> set[str]:
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return found & names


class Order:
    """Which test files run for a module, and in which order."""

    def __init__(self, tree: Path, costs: dict[str, float]) -> None:
        # Some tests reach the package through the processes that `tests/support` starts.
        support = {f"tests.support.{path.stem}": path for path in (tree / "tests/support").glob("*.py")}
        trees: dict[str, ast.AST] = {module.name: module.tree for module in read_package(tree / "mhnb")}
        trees |= {name: ast.parse(path.read_text()) for name, path in support.items()}
        names = set(trees)
        self._imports = {name: _imported(module, names) for name, module in trees.items()}
        self._files = {}
        for path in sorted((tree / "tests").rglob("test_*.py")):
            file = str(path.relative_to(tree))
            if not file.startswith(("tests/system/", "tests/policy/", "tests/bench/")):
                self._files[file] = _imported(ast.parse(path.read_text()), names)
        self._costs = costs

    def _closure(self, names: set[str]) -> set[str]:
        found, waiting = set(names), list(names)
        while waiting:
            new = self._imports[waiting.pop()] - found
            found |= new
            waiting += new
        return found

    def stages(self, path: str) -> Iterator[list[str]]:
        """Yield the files: those of the module, the unit tests that reach it, and those on ranks."""
        name = path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        stem = path.rpartition("/")[2].removesuffix(".py")
        unit = [file for file in self._files if file.startswith("tests/unit/")]
        own = [file for file in unit if name in self._files[file] or file.endswith(f"/test_{stem}.py")]
        # First the tests that are named after the module.
        yield [path, *sorted(own, key=lambda file: (stem not in file, self._cost(file)))]
        reach = [file for file in unit if file not in own and name in self._closure(self._files[file])]
        yield sorted(reach, key=self._cost)
        yield sorted(set(self._files) - set(unit), key=self._cost)

    def _cost(self, file: str) -> float:
        return self._costs.get(file, 10.0)


def read_costs(path: Path) -> dict[str, float]:
    """Add up the seconds of each test file from a report of `make timings`."""
    costs: Counter[str] = Counter()
    for line in path.read_text().splitlines() if path.exists() else ():
        test = json.loads(line)
        costs[test["test"].partition("::")[0]] += test.get("setup", 0) + test.get("call", 0) + test.get("teardown", 0)
    return dict(costs)


# -- trying a fault


def _kill_rest(mark: str) -> None:
    """Kill what the tests of a broken product left behind."""
    for process in psutil.process_iter():
        try:
            if process.environ().get(_MARK) == mark:
                process.send_signal(signal.SIGKILL)
        except psutil.Error:
            continue  # ended meanwhile, or another user's


def _run_tests(tree: Path, files: Sequence[str], seconds: float) -> str | None:
    """Run tests until one fails; return its name, an empty text if none did, or None if that is not known."""
    mark = str(tree)
    options = f"-x -q --tb=no -rfE -p no:randomly -p no:cacheprovider -o timeout={_TEST_LIMIT_S}".split()
    command = [sys.executable, "-m", "pytest", *options, "-m", "not soak", *files]
    environment = {**os.environ, "PYTHONPATH": str(tree), _MARK: mark}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    with subprocess.Popen(
        command,
        cwd=tree,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    ) as process:
        try:
            output, _ = process.communicate(timeout=max(seconds, 1))
        except subprocess.TimeoutExpired:
            return None
        finally:
            process.kill()
            _kill_rest(mark)
    if process.returncode in (_EXIT_PASSED, _EXIT_NOTHING_RAN):
        return ""
    if process.returncode == _EXIT_BROKEN_CONFTEST:
        return "tests/conftest.py"
    failed = re.search(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", output, re.MULTILINE)
    return failed[1] if failed else None


def attempt(fault: Fault, tree: Path, order: Order, limit_s: float) -> Outcome:
    """Make a fault, run the tests, and undo it."""
    path = tree / fault.path
    original = path.read_text()
    began = time.monotonic()
    by: str | None = ""
    try:
        apply(fault, tree)
        for files in order.stages(fault.path):
            if files and (by := _run_tests(tree, files, began + limit_s - time.monotonic())) != "":
                break
    finally:
        path.write_text(original)
    if by and by != "tests/conftest.py" and _run_tests(tree, [by], _TEST_LIMIT_S) != "":
        by = None
    verdict = "undecided" if by is None else "caught" if by else "survived"
    return Outcome(fault, verdict, by or "", round(time.monotonic() - began, 1))


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.mutation", description=__doc__)
    parser.add_argument("--commit", default="HEAD", help="whose package and tests are used (default %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="chooses the faults (default %(default)s)")
    parser.add_argument("--count", type=int, default=60, help="how many faults (default %(default)s)")
    parser.add_argument("--limit", type=float, default=300, help="seconds for each (default %(default)s)")
    parser.add_argument("--jobs", type=int, default=2, help="how many at a time (default %(default)s)")
    parser.add_argument(
        "--faults", type=Path, help="a JSON file: these faults, or where to write those that were chosen"
    )
    parser.add_argument(
        "--results", type=Path, help="a file of JSON lines: outcomes are added, and those in it are kept"
    )
    parser.add_argument(
        "--timings", type=Path, default=ROOT / "build/timings.jsonl", help="of `make timings`, for the order"
    )
    return parser.parse_args(argv)


def main(argv: Sequence[str]) -> None:
    """Try the faults and print what became of them."""
    options = parse(argv)
    results: Path | None = options.results
    known = results.read_bytes().splitlines() if results and results.exists() else []
    outcomes = [msgspec.json.decode(line, type=Outcome) for line in known]
    trees: Queue[Path] = Queue()
    with TemporaryDirectory(prefix="mhnb-mutation-") as folder:
        for number in range(options.jobs):
            trees.put(Path(folder) / f"tree{number}")
            subprocess.run(["git", "clone", "-q", str(ROOT), f"{folder}/tree{number}"], check=True)
            subprocess.run(["git", "-C", f"{folder}/tree{number}", "checkout", "-q", options.commit], check=True)
        first = trees.queue[0]
        order = Order(first, read_costs(options.timings))
        if options.faults and options.faults.exists():
            faults = msgspec.json.decode(options.faults.read_bytes(), type=list[Fault])
        else:
            faults = choose(first, options.seed, options.count)
            if options.faults:
                options.faults.write_bytes(msgspec.json.encode(faults))

        def run(fault: Fault) -> None:
            tree = trees.get()
            try:
                outcome = attempt(fault, tree, order, options.limit)
            except (LookupError, OSError) as error:
                outcome = Outcome(fault, "not there", str(error), 0)
            finally:
                trees.put(tree)
            outcomes.append(outcome)
            print_outcome(outcome)
            if results:
                with results.open("ab") as file:
                    file.write(msgspec.json.encode(outcome) + b"\n")

        tried = {outcome.fault for outcome in outcomes}
        with ThreadPoolExecutor(options.jobs) as pool:
            list(pool.map(run, [fault for fault in faults if fault not in tried]))
    print_summary(outcomes)


def print_outcome(outcome: Outcome) -> None:
    """Print a fault, and what became of it."""
    fault = outcome.fault
    print(f"{outcome.verdict:9} {outcome.seconds:6.1f} s  {fault.kind:10} {fault.path}:{fault.line}  {outcome.by}")
    print(f"    - {fault.old.strip()}\n    + {fault.new.strip()}", flush=True)


def print_summary(outcomes: Sequence[Outcome]) -> None:
    """Print how many faults of each part were caught."""
    counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for outcome in outcomes:
        part = next(part for part in PARTS if outcome.fault.path.startswith(f"mhnb/{part}/"))
        counts[part][outcome.verdict] += 1
        counts["all"][outcome.verdict] += 1
    for part, verdicts in counts.items():
        print(f"{part:15} caught {verdicts['caught']:3} of {sum(verdicts.values()):3}   {dict(verdicts)}")


if __name__ == "__main__":
    main(sys.argv[1:])
