"""Reports in a shell: which words are the name of a cluster, and that each report can be built."""

from __future__ import annotations

import pytest

from mhnb.cli import ask
from mhnb.cli.main import parse_arguments
from mhnb.cluster.reports import REPORTS
from mhnb.commands.reports import list_reports
from mhnb.errors import InvalidRequest


def test_each_report_is_a_command() -> None:
    """What a notebook's process can answer is what both surfaces ask for."""
    assert sorted(command.name for command in list_reports(lambda _: print)) == sorted(REPORTS)


@pytest.mark.parametrize(
    ("line", "name", "dest", "value"),
    [
        ("trace", None, "what", []),
        ("trace 7", None, "what", ["7"]),
        ("trace open", None, "what", ["open"]),
        ("trace main In[7]", "main", "what", ["In[7]"]),
        ("trace main", "main", "what", []),
        ("logs 0,2-3", None, "ranks", "0,2-3"),
        ("logs main", "main", "ranks", None),
        ("logs main 1", "main", "ranks", "1"),
        ("logs main --rank 1", "main", "ranks", "1"),
        ("flight main --rank 1", "main", "ranks", "1"),
        ("metrics main loss", "main", "names", ["loss"]),
        ("metrics loss", "loss", "names", []),
        ("trace open In [7]", None, "what", ["open", "In", "[7]"]),
        ("trace trian", "trian", "what", []),
    ],
)
def test_name_of_the_cluster_may_be_left_out(
    monkeypatch: pytest.MonkeyPatch, line: str, name: str | None, dest: str, value: object
) -> None:
    """A word that is a cell or ranks is not taken for a name."""
    monkeypatch.setattr(ask, "find_clusters_named", lambda _, cluster: ["found"] if cluster == "main" else [])
    args = parse_arguments(line.split())
    ask._settle_arguments(args.command, args)
    assert (args.name, getattr(args, dest)) == (name, value)


def test_ranks_of_logs_are_given_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a word, or with the older flag."""
    monkeypatch.setattr(ask, "find_clusters_named", lambda *_: [])
    with pytest.raises(InvalidRequest, match=r"^logs 0 --rank 1: expected ranks once$"):
        ask._settle_arguments("logs", parse_arguments(["logs", "0", "--rank", "1"]))
