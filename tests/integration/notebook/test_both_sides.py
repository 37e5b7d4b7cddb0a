"""Plain cells next to cells of the ranks: names of the other side, `?` and auto mode."""

from __future__ import annotations

import pytest
from IPython.core.inputtransformer2 import TransformerManager

from mhnb.cluster.cluster import Cluster
from mhnb.core.cell_request import route_cell
from tests.integration.notebook.conftest import Session


def test_name_error_hints_at_the_ranks(nb: Session) -> None:
    """A NameError in a plain cell keeps its text; a hint names `%%mhjax` and `%mhjax pull`, and the pull works."""
    nb.run("%%mhjax\nover_there = 7")
    outcome = nb.try_("1 + over_there")
    assert isinstance(outcome.error, NameError)
    assert "NameError: name 'over_there' is not defined" in outcome.text
    assert "'over_there' is defined on the ranks" in outcome.out
    assert "%%mhjax" in outcome.out
    assert "%mhjax pull over_there" in outcome.out
    nb.run("%mhjax pull over_there")
    assert nb.run("1 + over_there").value == 8


def test_name_on_one_rank_is_hinted_at(nb: Session) -> None:
    """The hint appears even if rank 0 lacks the name and only rank 1 has it."""
    nb.run("%%mhjax\nimport jax\nif jax.process_index() == 1:\n    only_there = 7")
    assert "'only_there' is defined on the ranks" in nb.try_("only_there").out


def test_hint_for_module_does_not_offer_pull(nb: Session) -> None:
    """For a module the hint names only `%%mhjax`, because code cannot be pulled."""
    nb.run("%%mhjax\nimport fractions as over_there_only")
    output = nb.try_("over_there_only.Fraction(1)").out
    assert "'over_there_only' is defined on the ranks, not in this notebook: use it in a %%mhjax cell\n" in output
    assert "pull" not in output


def test_undefined_name_has_no_hint(nb: Session) -> None:
    """A name that neither side defines raises a plain NameError without a hint."""
    assert "ranks" not in nb.try_("nobody_has_this").text


@pytest.mark.parametrize("asked", ["%debug", "%pdb on"])
def test_debugger_needs_a_user_who_types(nb: Session, monkeypatch: pytest.MonkeyPatch, asked: str) -> None:
    """Without a terminal mhnb says why a rank's error is not inspected; an error of the notebook itself opens IPython's debugger."""
    debugger_calls: list[bool] = []
    monkeypatch.setattr(nb.shell.InteractiveTB, "debugger", lambda force=False: debugger_calls.append(force))
    cells = ["%%mhjax\nimport jax\n1 / jax.process_index()", "%debug"]
    shown = [nb.try_(cell).text for cell in (cells if asked == "%debug" else [asked, *cells[:1], "%pdb off"])]
    assert "%mhjax debug: a rank that stops waits for a line that you type, and nothing can be typed here" in "".join(
        shown
    )
    assert not debugger_calls
    for cell in ("1 / 0", "import mhnb; mhnb.current().run('1 / 0').check()"):
        nb.try_(cell)
        nb.try_("%debug")
    assert debugger_calls == [True, True]


def test_question_mark_describes_rank_value(nb: Session) -> None:
    """`name?` describes a name that only the ranks have. An array is described without reading its values."""
    nb.run('%%mhjax\nimport jax.numpy as jnp\nasked = jnp.zeros((2, 3))\ndef helper():\n    "Says what it does."')
    assert "jax.Array" in nb.run("asked?").out
    assert "f32[2,3]" in nb.run("asked?").out
    assert "Says what it does." in nb.run("helper?").out


def test_question_mark_tells_as_much_on_both_sides(nb: Session) -> None:
    """`name?` shows the same lines about an array in a plain cell and in a `%%mhjax` cell; there, a local array has its numbers too."""
    nb.run(
        "%%mhjax\nimport jax, jax.numpy as jnp\nfrom jax.sharding import NamedSharding, PartitionSpec as P\n"
        "asked_mesh = jax.make_mesh((2, 2), ('x', 'y'))\n"
        "asked_global = jax.device_put(jnp.zeros((8, 4)), NamedSharding(asked_mesh, P('x')))\n"
        "asked_local = jnp.zeros((2, 5))"
    )
    lines = [
        "Type:     jax.Array, global",
        "Value:    f32[8,4]",
        "Sharding: P('x') on mesh (x 2, y 2)",
        "Memory:   64 B per device",
    ]
    assert nb.run("asked_global?").out.splitlines() == ["On ranks 0-1", *lines]
    assert nb.run("%%mhjax\nasked_global?").out.splitlines()[1:] == [f"  {line}" for line in lines]
    plain, cell = nb.run("asked_local?").out.split(), nb.run("%%mhjax\nasked_local?").out.split()
    assert plain[3:] == cell[cell.index("Type:") : cell.index("String")]
    assert cell[-5:] == ["[0.", "0.", "0.", "0.", "0.]]"]


def test_question_mark_names_the_ranks(nb: Session) -> None:
    """`name?` says which ranks have the name, and which have another value; it asks the others where rank 0 has none."""
    nb.run("%%mhjax\nasked_everywhere, asked_own = 'same', me\nif me == 1:\n    asked_once = 7")
    assert nb.run("asked_everywhere?").out.startswith("On ranks 0-1\n")
    assert nb.run("asked_own?").out.startswith("On rank 0; differs on rank 1: a %%mhjax cell shows each\n")
    once = nb.run("asked_once?").out
    assert once.startswith("On rank 1; not on rank 0\n")
    assert "7" in once.splitlines()[2]


def test_question_mark_shows_colours_in_a_page(nb: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the text form of the `name?` page has escape sequences, because a browser cannot interpret them."""
    nb.run("%%mhjax\ndef coloured(w): return w")
    pages: list[dict[str, str]] = []
    monkeypatch.setattr("IPython.core.page.page", pages.append)
    nb.run("coloured?")
    (page,) = pages
    assert "\x1b" in page["text/plain"]
    assert "On ranks 0-1" in page["text/html"]
    assert "\x1b" not in page["text/html"]


def test_question_mark_prefers_notebook_variable(nb: Session) -> None:
    """In a plain cell `name?` describes the notebook's own variable."""
    nb.run("%%mhjax\ntwice = 'of the ranks'")
    nb.run("twice = 1.5")
    assert "1.5" in nb.run("twice?").out
    assert "not found" in nb.try_("nobody_has_this?").text


def test_auto_mode_keeps_cell_completeness_check(nb: Session) -> None:
    """In auto mode a terminal finds the end of a cell as plain IPython does, and `exit` and `quit()` stay in the notebook.

    A terminal asks after each line: a complete line runs at once.
    """
    assert "notebook cells run in the notebook" in nb.run("%mhjax auto").out
    nb.run("%mhjax auto on")
    assert "mhjax auto on · notebook cells run on the ranks" in nb.run("%mhjax auto").out
    for source in ("5 + 5", "x = )", "if x:", "for i in y:\n    i\n"):
        plain = TransformerManager().check_complete(source)
        assert nb.shell.check_complete(source) == (plain[0], " " * (plain[1] or 0) if plain[0] == "incomplete" else "")
    assert route_cell("exit") == route_cell("quit()") == "here"


def test_auto_sends_plain_cells(nb: Session) -> None:
    """In auto mode a plain cell runs on every rank, and its output has a heading even if the cell prints nothing."""
    output = nb.run("%mhjax auto on").out
    assert "%%local" in output
    assert nb.run("autoed = 1 + me").out.startswith("mhjax · ranks 0-1 · ")
    assert nb.run("autoed").out.splitlines()[1:] == ["rank 0 │ 1", "rank 1 │ 2"]
    assert nb.run("%mhjax auto off").out == "mhjax auto off · notebook cells run in the notebook\n"
    assert isinstance(nb.try_("autoed").error, NameError)


def test_auto_sends_a_cell_magic_with_its_cell(nb: Session) -> None:
    """In auto mode `%%time` is sent to the ranks with its cell and measures there."""
    nb.run("%mhjax auto on")
    output = nb.run("%%time\ntimed = 3").out
    assert output.startswith("mhjax · ranks 0-1 · ")
    assert "Wall time" in output
    assert "3" in nb.run("timed").out


@pytest.mark.parametrize("cell", ["%%local\nhere_alone = 'x'", "\n%%local\nhere_alone = 'x'"])
@pytest.mark.parametrize("switch", ["on", "off"])
def test_local_cell_runs_in_notebook(nb: Session, switch: str, cell: str) -> None:
    """`%%local` runs a cell in the notebook, with and without auto mode, and its value is the value of the cell."""
    nb.run(f"%mhjax auto {switch}")
    nb.run(cell)
    assert nb.run("%%local\nhere_alone").value == "x"
    assert "False" in nb.run("%%mhjax\n'here_alone' in globals()").out


@pytest.mark.parametrize("switch", ["on", "off"])
def test_a_local_cell_that_fails_stops_run_all(nb: Session, switch: str) -> None:
    """The error of a failing `%%local` cell is the cell's error, so that Run All stops, and is shown once."""
    nb.run(f"%mhjax auto {switch}")
    outcome = nb.try_("%%local\n1 / 0")
    assert isinstance(outcome.error, ZeroDivisionError)
    assert outcome.text.count("Traceback (most recent call last)") == 1


@pytest.mark.parametrize("switch", ["on", "off"])
def test_local_with_arguments_is_refused(nb: Session, switch: str) -> None:
    """`%%local` with an argument is refused, and the cell does not run."""
    nb.run(f"%mhjax auto {switch}")
    nb.expect_usage_error("%%local --ranks 1\nran_anyway = 1")
    assert isinstance(nb.try_("%%local\nran_anyway").error, NameError)


def test_auto_runs_mhjax_lines_in_notebook(nb: Session) -> None:
    """In auto mode `%mhjax` lines, `%load_ext mhnb` and comments never reach a rank; `%%mhjax` cells keep their flags."""
    nb.run("%mhjax auto on")
    assert "alive" in nb.run("# how are they?\n%mhjax status").out
    assert nb.run("%load_ext mhnb\n%mhjax list").out.splitlines()[-1].startswith("default")
    assert nb.run("# nothing").text == ""
    assert nb.run("").text == ""
    assert nb.run("%%mhjax --ranks 1\nme").out.startswith("rank 1 of 2 · ")
    assert "start and stop:" in nb.run("%mhjax?").out


def test_auto_refuses_a_mixed_cell(nb: Session, cluster: Cluster) -> None:
    """In auto mode a cell that mixes a `%mhjax` line with code is refused, and nothing runs on either side."""
    nb.run("%mhjax auto on")
    assert "mixes '%mhjax status' with code" in nb.expect_usage_error("%mhjax status\nmixed = 1")
    assert "False" in nb.run("'mixed' in globals()").out
    assert isinstance(nb.try_("%%local\nmixed").error, NameError)


def test_auto_cell_shows_rank_error(nb: Session) -> None:
    """A plain cell that fails in auto mode raises CellFailed and shows its own line, as a `%%mhjax` cell does."""
    nb.run("%mhjax auto on")
    outcome = nb.try_("x = 1\nx / 0")
    assert type(outcome.error).__name__ == "CellFailed"
    assert "line 2:   x / 0" in outcome.out
