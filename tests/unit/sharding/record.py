"""`python -m tests.unit.sharding.record [--tpu]`: compile the programs with the JAX of this environment and write their texts.

`--tpu` compiles them ahead of time for a TPU of 8 chips on two hosts; it needs the package libtpu, and no TPU.
"""

import os
import sys
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[2]


def main(argv: list[str]) -> int:
    """Write the texts."""
    os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"
    os.environ["JAX_PLATFORMS"] = "cpu"
    os.environ["TPU_SKIP_MDS_QUERY"] = "1"
    import jax
    import numpy as np
    from jax.experimental import topologies

    from tests.unit.sharding import programs

    on_tpu = argv == ["--tpu"]
    devices = topologies.get_topology_desc(platform="tpu", topology_name="v5e:2x4").devices if on_tpu else jax.devices()
    for program in programs.TPU if on_tpu else programs.CPU:
        f, arguments = program(programs.World(np.array(devices)))
        lowered = f.lower(*arguments)
        kind = f"{program.__name__}.{'tpu' if on_tpu else 'cpu'}.jax-{jax.__version__}"
        for end, text in (("hlo", lowered.compile().as_text()), ("mlir", lowered.as_text(debug_info=True))):
            path = HERE / "texts" / f"{kind}.{end}"
            path.parent.mkdir(exist_ok=True)
            path.write_text(text.replace(f"{ROOT}/", ""), encoding="utf-8")
            print(path.name, len(text))
    if not on_tpu:
        from jaxlib._hlo import hlo_module_from_text  # type: ignore[import-not-found,unused-ignore]

        # Spellings that no compiler here produces itself: XLA's own parser checks them, and its printer writes them.
        printed = hlo_module_from_text((HERE / "spellings.hlo").read_text(encoding="utf-8")).to_string()
        (HERE / "texts" / f"spellings.xla.jax-{jax.__version__}.hlo").write_text(printed, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
