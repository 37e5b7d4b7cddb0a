"""Style rules that no formatter checks: sizes, names, documentation, errors, words and declarations."""

from __future__ import annotations

import ast
import importlib.metadata
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.source import PACKAGE, ROOT, Function, Module, functions, parse_module, read_package

FUNCTION_LINES = 60
PARAMETERS = 6
SUMMARY_WORDS = 12
LONG_SIGNATURES = {"mhnb.cluster.manager.start"}
"""Each option that a user can give to `start` is a documented parameter, so that help, completion and mypy know it."""

REPORTS = ("exc_info", "exception", "format_exc", "print_exc", "print_exception", "showtraceback")
"""A call of one of these reports the error being handled."""

WORDS = re.compile(
    r"(?i:\b(TODO|FIXME|XXX|HACK)\b|\bseamless|\bblazing|\beffortless|\bcutting[- ]edge|\belegant)|world[ _]size"
)
"""Unfinished work, words that the project avoids, and praise."""
ADDRESSES = re.compile(r"/(?:home|root|Users)/\w|index-url|find-links|/simple[/\"]|\"resolved\":")
"""Paths of one machine, and addresses of a package index."""
PROVIDED_BY = {
    "comm": "ipywidgets",
    "jaxlib": "jax",
    "jupyter-client": "ipykernel",
    "mistune": "nbconvert",
    "ml-dtypes": "jax",
    "tornado": "ipykernel",
    "traitlets": "ipython",
}
"""Packages that come with a declared dependency because its own interface is made of them."""
THIS_FILE = Path(__file__).relative_to(ROOT).as_posix()

Rule = Callable[[Module], Iterator[str]]


# -- one module at a time


def is_short(module: Module) -> Iterator[str]:
    """A function has at most 60 lines and six parameters."""
    for function in functions(module.tree):
        if f"{module.name}.{function.name}" in LONG_SIGNATURES:
            continue
        length = (function.end_lineno or 0) - function.lineno + 1
        if length > FUNCTION_LINES:
            yield f"{module.name}.{function.name}: {length} lines"
        arguments = function.args
        count = len([a for a in (*arguments.posonlyargs, *arguments.args) if a.arg not in ("self", "cls")])
        if count + len(arguments.kwonlyargs) > PARAMETERS:
            yield f"{module.name}.{function.name}: {count + len(arguments.kwonlyargs)} parameters"


def lists_sorted_names(module: Module) -> Iterator[str]:
    """`__all__` is sorted as plain strings, has no duplicates, and lists only names that exist."""
    listed = _listed_names(module.tree)
    if listed is None:
        return
    if listed != sorted(set(listed)):
        yield f"{module.name}: __all__ should be {sorted(set(listed))}"
    if not any(
        function.name == "__getattr__" for function in module.tree.body if isinstance(function, ast.FunctionDef)
    ):
        yield from (f"{module.name}: __all__ names {name}" for name in listed if name not in _bound_names(module.tree))


def _listed_names(tree: ast.Module) -> list[str] | None:
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return list(ast.literal_eval(node.value))
    return None


def _bound_names(tree: ast.Module) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            found.update(alias.asname or alias.name for alias in node.names)
    return found


def is_documented(module: Module) -> Iterator[str]:
    """Every module, public class, public function and public method has a docstring."""
    if not ast.get_docstring(module.tree):
        yield f"{module.name}: no docstring"
    for name, node in _public(module.tree.body, module.name):
        if not ast.get_docstring(node) and not _is_overload(node):
            yield f"{name}: no docstring"


def is_summarised(module: Module) -> Iterator[str]:
    """The first line of a docstring has at most 12 words."""
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Module | ast.ClassDef | Function):
            summary = (ast.get_docstring(node) or "").partition("\n")[0]
            if len(summary.split()) > SUMMARY_WORDS:
                yield f"{module.name}:{getattr(node, 'lineno', 1)}: {summary}"


def _public(body: Iterable[ast.stmt], prefix: str) -> Iterator[tuple[str, Function | ast.ClassDef]]:
    for node in body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and not node.name.startswith("_"):
            yield f"{prefix}.{node.name}", node
            if isinstance(node, ast.ClassDef):
                yield from _public(node.body, f"{prefix}.{node.name}")


def _is_overload(node: Function | ast.ClassDef) -> bool:
    names = {ast.unparse(decorator).rpartition(".")[2] for decorator in node.decorator_list}
    return bool(names & {"overload", "override", "setter"})


def handles_errors(module: Module) -> Iterator[str]:
    """No handler is bare or empty, and a broad one raises again, uses the error, or prints it."""
    for node in ast.walk(module.tree):
        if isinstance(node, ast.ExceptHandler) and (fault := _handler_fault(node)):
            yield f"{module.name}:{node.lineno}: {fault}"
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("suppress") and _is_broad(*node.args):
            yield f"{module.name}:{node.lineno}: suppresses everything"


def _handler_fault(handler: ast.ExceptHandler) -> str | None:
    if handler.type is None:
        return "bare except"
    if all(isinstance(node, ast.Pass) or ast.unparse(node) == "..." for node in handler.body):
        return "an empty handler; contextlib.suppress(ThatError) says it, with the reason beside it"
    kinds = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    return "a broad handler that tells nobody" if _is_broad(*kinds) and not _reports_error(handler) else None


def _is_broad(*kinds: ast.expr) -> bool:
    return any(ast.unparse(kind) in ("Exception", "BaseException") for kind in kinds)


def _reports_error(handler: ast.ExceptHandler) -> bool:
    for node in (inner for statement in handler.body for inner in ast.walk(statement)):
        if isinstance(node, ast.Raise) or (isinstance(node, ast.Name) and node.id == handler.name):
            return True
        if isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] in REPORTS:
            return True
    return False


RULES: tuple[Rule, ...] = (
    is_documented,
    is_summarised,
    is_short,
    lists_sorted_names,
    handles_errors,
)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_every_module_follows_the_rule(rule: Rule) -> None:
    """Every module of the package follows the rule."""
    found = [line for module in read_package() for line in rule(module)]
    assert not found, f"{rule.__doc__}\n" + "\n".join(found)


@pytest.mark.parametrize(
    ("rule", "text"),
    [
        (is_documented, "x = 1"),
        (is_documented, '"""M."""\ndef f(): ...'),
        (is_documented, '"""M."""\nclass C:\n    """C."""\n    def f(self): ...'),
        (is_summarised, f'"""{"word " * SUMMARY_WORDS}more."""'),
        (is_summarised, f'"""M."""\ndef _f():\n    """{"word " * SUMMARY_WORDS}more.\n\n    Why."""'),
        (is_short, "def f():\n" + "    x = 1\n" * FUNCTION_LINES),
        (is_short, "def f(self, a, b, *, c, d, e, f, g): ..."),
        (lists_sorted_names, "__all__ = ['b', 'a']\na = b = 1"),
        (lists_sorted_names, "__all__ = ['a', 'gone']\na = 1"),
        (handles_errors, "try: f()\nexcept: g()"),
        (handles_errors, "try: f()\nexcept KeyError: pass"),
        (handles_errors, "try: f()\nexcept Exception: g()"),
        (handles_errors, "try: f()\nexcept (KeyError, BaseException) as error: g()"),
        (handles_errors, "import contextlib\nwith contextlib.suppress(Exception): f()"),
    ],
    ids=lambda value: value.__name__ if callable(value) else None,
)
def test_rule_finds_a_fault(rule: Rule, text: str) -> None:
    """Each rule finds a sample module that breaks it."""
    assert list(rule(parse_module("mhnb.core.bad", text)))


def test_every_exemption_is_needed() -> None:
    """A function that may be long exists, and has more parameters than others may have."""
    long = {
        f"{module.name}.{function.name}"
        for module in read_package()
        for function in functions(module.tree)
        if len((*function.args.args, *function.args.kwonlyargs)) > PARAMETERS
    }
    assert long >= LONG_SIGNATURES


@pytest.mark.parametrize(
    "text",
    [
        "try: f()\nexcept KeyError: g()",
        "try: f()\nexcept Exception as error: tell(error)",
        "try: f()\nexcept BaseException:\n    clean()\n    raise",
        "try: f()\nexcept Exception: shell.showtraceback()",
        "with contextlib.suppress(KeyError): f()",
    ],
)
def test_handler_that_reports_its_error_passes(text: str) -> None:
    """A handler that uses its error or raises it again follows the rule."""
    assert not list(handles_errors(parse_module("mhnb.core.good", text)))


# -- the whole tree


def _texts() -> Iterator[tuple[str, str]]:
    """Yield every text file that git tracks or would add, except this file, which contains the words."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    for name in listed:
        if name != THIS_FILE and (ROOT / name).suffix not in (".png", ".ico") and (ROOT / name).is_file():
            yield name, (ROOT / name).read_text(encoding="utf-8")


def _hits(pattern: re.Pattern[str], texts: Iterable[tuple[str, str]]) -> list[str]:
    return [
        f"{name}:{number}: {line.strip()[:100]}"
        for name, text in texts
        for number, line in enumerate(text.splitlines(), 1)
        if pattern.search(line)
    ]


@pytest.mark.parametrize("pattern", [WORDS, ADDRESSES], ids=["words", "addresses"])
def test_files_contain_no_forbidden_text(pattern: re.Pattern[str]) -> None:
    """No file has unfinished work, praise, a path of one machine or the address of an index."""
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout: which files belong to the project is unknown")
    assert not _hits(pattern, _texts())


@pytest.mark.parametrize(
    ("pattern", "line"),
    [(WORDS, "# todo later"), (WORDS, "world_size = 4"), (ADDRESSES, "--index-url x"), (ADDRESSES, "see /home/me/x")],
)
def test_forbidden_word_is_found(pattern: re.Pattern[str], line: str) -> None:
    """The search finds each kind of word."""
    assert _hits(pattern, [("made-up", line)])


def test_the_architecture_names_existing_files() -> None:
    """Every path of a module that ARCHITECTURE.md names exists."""
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    paths = [path for path in re.findall(r"`([\w/]+\.py)`", text) if "/" in path]
    assert len(paths) > 50
    assert not [path for path in paths if not any((base / path).exists() for base in (ROOT, PACKAGE))]


def test_the_glossary_is_short() -> None:
    """The glossary has at most 40 entries, and CONTRIBUTING links to it."""
    glossary = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (?!word )[^-|]+ \|", glossary, re.MULTILINE)
    assert 20 < len(rows) <= 40
    assert "(docs/glossary.md)" in (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")


def test_linked_files_exist() -> None:
    """Every local file that README or CONTRIBUTING links to exists."""
    links = [
        (name, target)
        for name in ("README.md", "CONTRIBUTING.md")
        for target in re.findall(r"\]\(([^)#\s]+)", (ROOT / name).read_text(encoding="utf-8"))
        if "://" not in target
    ]
    assert links
    assert not [f"{name}: {target}" for name, target in links if not (ROOT / target).exists()]


def test_notebooks_have_no_outputs() -> None:
    """A notebook in the repository has code and prose only; running it creates its outputs."""
    stored = {path.name: path.read_text(encoding="utf-8") for path in (ROOT / "notebooks").glob("**/*.ipynb")}
    assert not [name for name, text in stored.items() if '"output_type"' in text]


# -- what is declared


def _project() -> dict[str, Any]:
    return dict(tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"])


def _name_of(requirement: str) -> str:
    return re.split(r"[^\w.-]", requirement, maxsplit=1)[0].lower().replace("_", "-")


def _declared() -> set[str]:
    project = _project()
    return {_name_of(each) for each in [*project["dependencies"], *project["optional-dependencies"]["lab"]]}


def _imported_distributions() -> dict[str, str]:
    """Return distribution -> a module of the package that imports it directly."""
    owners = importlib.metadata.packages_distributions()
    found = {}
    for module in read_package():
        for node in ast.walk(module.tree):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            names += [node.module] if isinstance(node, ast.ImportFrom) and node.module and not node.level else []
            for top in {name.split(".")[0] for name in names} - set(sys.stdlib_module_names) - {"mhnb"}:
                found[owners.get(top, [top])[0].lower().replace("_", "-")] = module.name
    return found


def test_each_import_is_declared() -> None:
    """A package that mhnb imports is in pyproject.toml, or comes with a declared dependency whose interface needs it."""
    missing = {d: m for d, m in _imported_distributions().items() if PROVIDED_BY.get(d, d) not in _declared()}
    assert not missing


def test_each_dependency_has_a_comment() -> None:
    """Every requirement in pyproject.toml has a comment beside it."""
    lines = (ROOT / "pyproject.toml").read_text(encoding="utf-8").splitlines()
    requirements = [line for line in lines if re.match(r'^  "[\w.-]+([<>=].*)?",', line) and ">=" in line]
    assert requirements
    assert not [line for line in requirements if "#" not in line]


def test_each_dependency_is_pinned() -> None:
    """The pins have a version for every requirement, and nothing but names, versions and markers."""
    pins = [
        line for line in (ROOT / ".ci" / "constraints.txt").read_text(encoding="utf-8").splitlines() if line[:1] != "#"
    ]
    assert not [line for line in pins if not re.fullmatch(r"[\w.-]+==[\w.]+( ; .*)?", line)]
    pinned, project = {_name_of(line) for line in pins}, _project()
    wanted = [
        *project["dependencies"],
        *(each for extra in project["optional-dependencies"].values() for each in extra),
    ]
    assert {_name_of(each) for each in wanted} - pinned == {"mhnb"}


@pytest.mark.other_python
def test_the_installed_jax_is_the_pinned_one() -> None:
    """This environment has the JAX version that is pinned for its Python."""
    marker = "python_full_version < '3.12'" if sys.version_info < (3, 12) else "python_full_version >= '3.12'"
    pins = (ROOT / ".ci" / "constraints.txt").read_text(encoding="utf-8").splitlines()
    assert f"jax=={importlib.metadata.version('jax')} ; {marker}" in pins
