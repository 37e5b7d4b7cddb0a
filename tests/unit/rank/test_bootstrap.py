"""Names of `jax.distributed.initialize`'s arguments are checked against the JAX of the rank."""

from __future__ import annotations

import pytest

from mhnb.errors import InvalidRequest
from mhnb.rank.bootstrap import _check_names

OF_A_NEWER_JAX = ("coordinator_address", "num_processes", "process_id", "mtls_cert_file", "mtls_key_file")


def test_names_are_those_of_the_jax_of_the_rank() -> None:
    """An argument that only a newer JAX has passes there; the closest of an unknown one is never one that mhnb sets."""
    _check_names(OF_A_NEWER_JAX, OF_A_NEWER_JAX)
    for name, said in (
        ("mtls_cert_fil", "unknown argument 'mtls_cert_fil'. Did you mean 'mtls_cert_file'?"),
        (
            "process_ids",
            "unknown argument 'process_ids'; expected coordinator_address, mtls_cert_file or mtls_key_file",
        ),
    ):
        with pytest.raises(InvalidRequest) as refused:
            _check_names((*OF_A_NEWER_JAX, name), OF_A_NEWER_JAX)
        assert str(refused.value).partition(": ")[2] == said
