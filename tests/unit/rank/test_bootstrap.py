"""Arguments of `jax.distributed.initialize`: the names are those of the rank's JAX, and a second call is compared."""

from __future__ import annotations

import pytest

from mhnb.errors import InvalidRequest
from mhnb.rank.bootstrap import _check_names, _idempotent_initialize

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


def test_second_call_is_compared_with_the_first(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """After `start --no-init` a cell may connect the ranks differently, and those values count from then on."""
    calls = []

    def original(address: str | None = None, num_processes: int | None = None, process_id: int | None = None) -> None:
        calls.append((address, num_processes, process_id))

    monkeypatch.setattr("mhnb.rank.jax_private.backend_is_initialized", lambda: True)
    in_force = {"address": "a:1", "num_processes": 4, "process_id": 0}
    initialize = _idempotent_initialize(original, in_force, lambda: bool(calls))
    initialize("b:1", 2, 0)
    initialize("b:1", 2, 0)
    initialize("c:1", 2)
    assert calls == [("b:1", 2, 0)]
    done = "mhnb: jax.distributed is already initialised on every rank; nothing to do"
    assert capsys.readouterr().err.splitlines() == [done, f"{done}; ignored: address='c:1'"]
    with pytest.raises(
        RuntimeError, match="already initialised with num_processes=2, and this call has num_processes=4"
    ):
        initialize("a:1", 4, 0)
