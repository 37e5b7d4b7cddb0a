"""View of a completed start, for the notebook and the shell."""

from __future__ import annotations

from dataclasses import replace

from mhnb.cluster.cluster import Cluster
from mhnb.types import DeviceRef
from mhnb.view.reports.start import StartSummary

NOT_INITIALISED = "JAX is not initialised; run jax.distributed.initialize() without arguments in a %%mhjax cell"
"""Note on a cluster that was started with `--no-init`."""


def summarize_start(cluster: Cluster) -> StartSummary:
    """Return the view of a completed start."""
    ranks, notes = cluster.ranks, cluster.notes
    if not cluster.shape.init:
        # JAX is not initialised and does not know its devices yet, so show the requested number.
        requested = range(cluster.shape.devices or 0)
        ranks = tuple(replace(r, devices=tuple(DeviceRef(r.rank, ordinal) for ordinal in requested)) for r in ranks)
        notes = (*notes, NOT_INITIALISED)
    return StartSummary(
        ranks,
        cluster.started_in_s,
        cluster.jax_version,
        cluster.guard,
        location="on this machine" if cluster.shape.is_local else f"by {cluster.shape.kind or cluster.shape.profile}",
        log_dir=str(cluster.log_dir),
        notes=notes,
        preflight_s=cluster.preflight_s,
    )
