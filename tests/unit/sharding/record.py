"""`python -m tests.unit.sharding.record [--cost] [--tpu|--gpu]`: compile programs with this environment's JAX, write their texts.

`--tpu` compiles them ahead of time for a TPU of 8 chips on two hosts; it needs the package libtpu, and no TPU.
`--cost` compiles those of `cost_programs.py` instead, whose texts are shortened. With `--gpu` it compiles them for 8 H100; that
needs jax-cuda12-plugin and jax-cuda12-pjrt, and no GPU.
"""

import json
import os
import re
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
ROOT = HERE.parents[2]

H100 = """
gpu_device_info {
  threads_per_block_limit: 1024 threads_per_warp: 32 shared_memory_per_block: 49152 shared_memory_per_core: 233472
  threads_per_core_limit: 2048 core_count: 132 fpus_per_core: 128 block_dim_limit_x: 2147483647 block_dim_limit_y: 65535
  block_dim_limit_z: 65535 memory_bandwidth: 3352320000000 l2_cache_size: 52428800 clock_rate_ghz: 1.98
  device_memory_size: 84942979072 shared_memory_per_block_optin: 232448 cuda_compute_capability { major: 9 }
  registers_per_core_limit: 65536 registers_per_block_limit: 65536
}
platform_name: "CUDA"
dnn_version_info { major: 9 minor: 8 }
device_description_str: "NVIDIA H100 80GB HBM3"
"""
"""The machine as XLA's compiler for GPU wants to know it."""
METADATA = re.compile(r', (?:metadata|frontend_attributes)=\{(?:[^{}"]|"(?:[^"\\]|\\.)*"|\{[^{}]*\})*\}')
TABLES = re.compile(r"^(?:FileNames|FunctionNames|FileLocations|StackFrames)\n(?:\d.*\n)*\n*", re.MULTILINE)
SETTINGS = re.compile(
    r", backend_config=\{(?!.*(?:known_trip_count|gemm_backend)).*|, sharding=\{[^{}]*\}|, allow_spmd\w+=\{[a-z,]*\}"
    r"|, entry_computation_layout=\{.*?\)->.*?(?=, \w+=|$)",
    re.MULTILINE,
)
"""Window sizes, tiles and the like, half of the text."""


def record_costs(devices: Any, platform: str) -> None:
    """Write the texts of the programs whose cost is counted, and XLA's own count."""
    import jax

    from tests.unit.sharding import cost_programs

    variants: list[tuple[Any, int, dict[str, bool]]] = [
        (program, 1, {}) for program in cost_programs.ONE_DEVICE[platform]
    ]
    variants += [(program, 2, {}) for program in cost_programs.ON_FOUR[platform]]
    if platform == "gpu":
        without = {"xla_gpu_enable_triton_gemm": False, "xla_gpu_cublas_fallback": True}
        variants += [(program, 1, without) for program in cost_programs.LIBRARY]
    folder = HERE / "texts" / "cost"
    folder.mkdir(parents=True, exist_ok=True)
    figures = folder / "xla.json"
    counted = json.loads(figures.read_text(encoding="utf-8")) if figures.exists() else {}
    for program, side, options in variants:
        f, arguments = program(cost_programs.World(devices, side))
        compiled = f.lower(*arguments).compile(compiler_options=options or None)
        name = program.__name__ + ("_4" if side == 2 else "") + ("_library" if options else "")
        path = folder / f"{name}.{platform}.jax-{jax.__version__}.hlo"
        text = SETTINGS.sub("", METADATA.sub("", TABLES.sub("", compiled.as_text())))
        path.write_text(text, encoding="utf-8")
        own = compiled.cost_analysis() or {}
        counted[path.stem] = {key: own[key] for key in ("flops", "bytes accessed") if key in own}
        print(path.name, len(text))
    figures.write_text(json.dumps(counted, indent=1, sort_keys=True) + "\n", encoding="utf-8")


def main(argv: list[str]) -> int:
    """Write the texts."""
    os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"
    os.environ["JAX_PLATFORMS"] = "cpu"
    os.environ["TPU_SKIP_MDS_QUERY"] = "1"
    import jax
    import numpy as np
    from jax.experimental import topologies

    from tests.unit.sharding import programs

    on_tpu = "--tpu" in argv
    devices = topologies.get_topology_desc(platform="tpu", topology_name="v5e:2x4").devices if on_tpu else jax.devices()
    if "--gpu" in argv:
        devices = topologies.get_topology_desc("h100", platform="cuda", target_config=H100, topology="1x1x8").devices
    if "--cost" in argv:
        record_costs(np.array(devices), devices[0].platform)
        return 0
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
