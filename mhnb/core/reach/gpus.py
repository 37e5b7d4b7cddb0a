"""Assign GPUs to the ranks of a machine, from the output of nvidia-smi and CUDA_VISIBLE_DEVICES.

A GPU is identified by its UUID, which is the same for every process on every machine. This module uses no process.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mhnb.errors import LaunchError

__all__ = ["divide_gpus", "find_shared_gpu", "parse_gpus", "select_visible"]


def parse_gpus(text: str) -> tuple[str, ...]:
    r"""Parse the UUIDs that `nvidia-smi --query-gpu=index,uuid --format=csv,noheader` lists, in the order of their indices.

    >>> parse_gpus("1, GPU-b\n0, GPU-a\n")
    ('GPU-a', 'GPU-b')
    """
    rows = [line.split(",", 1) for line in text.splitlines() if "," in line]
    found = [(int(index), uuid.strip()) for index, uuid in rows if index.strip().isdecimal()]
    return tuple(uuid for _, uuid in sorted(found))


def select_visible(gpus: Sequence[str], visible: str | None) -> tuple[str, ...]:
    """Return the GPUs that a process sees.

    Args:
        gpus: UUIDs of the machine, by index.
        visible: CUDA_VISIBLE_DEVICES; None if it is not set. As in CUDA, an entry that is not a GPU hides all that follow.

    >>> select_visible(["GPU-a", "GPU-b"], "1"), select_visible(["GPU-a", "GPU-b"], None)
    (('GPU-b',), ('GPU-a', 'GPU-b'))
    """
    if visible is None:
        return tuple(gpus)
    seen: list[str] = []
    for word in (part.strip() for part in visible.split(",")):
        if word.isdecimal() and int(word) < len(gpus):
            seen.append(gpus[int(word)])
        elif word.startswith("MIG-"):
            seen.append(word)
        elif word and (named := [uuid for uuid in gpus if word.startswith("GPU-") and uuid.startswith(word)]):
            seen.append(named[0])
        else:
            break
    return tuple(seen)


def divide_gpus(gpus: Sequence[str], ranks: Sequence[int], where: str) -> dict[int, tuple[str, ...]]:
    """Assign each rank of a machine its own GPUs; adjacent GPUs stay together.

    Args:
        gpus: the GPUs to assign.
        ranks: of this machine.
        where: the machine's name, for the error.

    Raises:
        LaunchError: there are fewer GPUs than ranks, or the ranks would have different numbers of GPUs.

    >>> divide_gpus(["a", "b", "c", "d"], [4, 5], "host")
    {4: ('a', 'b'), 5: ('c', 'd')}
    """
    gpus_per_rank, rest = divmod(len(gpus), len(ranks))
    if gpus_per_rank == 0 or rest:
        raise LaunchError(
            f"{where} has {len(gpus)} GPUs for {len(ranks)} ranks, and each rank needs the same number of its own\n"
            f"  start so many ranks that {len(gpus) or 'the GPUs'} can be shared out (-n, --per-host), or name the GPUs in "
            "CUDA_VISIBLE_DEVICES; nvidia-smi -L lists them"
        )
    return {rank: tuple(gpus[at * gpus_per_rank : (at + 1) * gpus_per_rank]) for at, rank in enumerate(ranks)}


def find_shared_gpu(gpus: Mapping[int, Sequence[str]]) -> tuple[str, tuple[int, ...]] | None:
    """Return a GPU that more than one rank would use, with those ranks; None if there is no such GPU.

    >>> find_shared_gpu({0: ["GPU-a"], 1: ["GPU-b", "GPU-a"]})
    ('GPU-a', (0, 1))
    """
    users: dict[str, list[int]] = {}
    for rank, own in gpus.items():
        for uuid in own:
            users.setdefault(uuid, []).append(rank)
    return next(((uuid, tuple(sorted(ranks))) for uuid, ranks in users.items() if len(ranks) > 1), None)
