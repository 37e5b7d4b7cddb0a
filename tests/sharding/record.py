"""`python -m tests.sharding.record [--tpu]`: compile the programs with the JAX of this environment and write their texts.

`--tpu` compiles them ahead of time for a TPU of 8 chips on two hosts; it needs the package libtpu, and no TPU.
"""

import os
import sys
from pathlib import Path

SPELLINGS = """HloModule spellings, num_partitions=8

%add (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %s = f32[] add(%a, %b)
}

%scatter (p: f32[8]) -> f32[4] {
  %p = f32[8]{0} parameter(0)
  ROOT %in_async = f32[4]{0} reduce-scatter(%p), channel_id=3, replica_groups=[4,2]<=[8], dimensions={0}, to_apply=%add
}

ENTRY %main (p: f32[8]) -> f32[8] {
  %p = f32[8]{0} parameter(0)
  %i = s64[8]{0} constant({1,1,1,1,1,1,1,1})
  %all = f32[8]{0} all-reduce(%p), channel_id=1, replica_groups={}, use_global_device_ids=true, to_apply=%add
  %iota = f32[8]{0} all-reduce(%all), replica_groups=[2,4]<=[4,2]T(1,0), channel_id=1, to_apply=%add, use_global_device_ids=true
  %cube = f32[8]{0} all-reduce(%iota), replica_groups=[2,4]<=[2,2,2]T(1,0,2), channel_id=1, to_apply=%add, use_global_device_ids=true
  %axis = f32[8]{0} all-reduce(%cube), replica_groups=mesh['a'=4,'b'=2], device_ids=([2,4]T(1,0)) {'a'}, channel_id=1, to_apply=%add, use_global_device_ids=true
  %ids = f32[8]{0} all-reduce(%axis), replica_groups=mesh['a'=4,'b'=2], device_ids=(0,2,4,6,1,3,5,7) {'a'}, channel_id=1, to_apply=%add, use_global_device_ids=true
  %part = f32[8]{0} all-reduce(%ids), replica_groups=mesh['a'=4,'b'=2] {'b','a':(2)2}, channel_id=1, to_apply=%add, use_global_device_ids=true
  %front = f32[8]{0} all-reduce(%part), replica_groups=mesh['a'=4,'b'=2] {'a':(1)2}, channel_id=1, to_apply=%add, use_global_device_ids=true
  %r = f32[8]{0} all-reduce-start(%front), channel_id=1, replica_groups={{0,1,2,3,4,5,6,7}}, use_global_device_ids=true, to_apply=%add
  %rd = f32[8]{0} all-reduce-done(%r)
  %g = (f32[8]{0}, f32[16]{0}) all-gather-start(%rd), channel_id=2, replica_groups=[4,2]<=[8], dimensions={0}, use_global_device_ids=true
  %gd = f32[16]{0} all-gather-done(%g)
  %x = ((f32[8]{0}), f32[4]{0}) async-start(%rd), calls=%scatter
  %xu = ((f32[8]{0}), f32[4]{0}) async-update(%x), calls=%scatter
  %xd = f32[4]{0} async-done(%xu), calls=%scatter
  %t = ((f32[8]{0}), f32[8]{0}, s32[]) all-to-all-start(%rd), channel_id=4, replica_groups={{0,1},{2,3},{4,5},{6,7}}, dimensions={0}
  %td = f32[8]{0} all-to-all-done(%t)
  %c = (f32[8]{0}, f32[8]{0}, u32[], u32[]) collective-permute-start(%td), channel_id=5, source_target_pairs={{0,1},{1,0}}
  %cd = f32[8]{0} collective-permute-done(%c)
  %cb = f32[8]{0} collective-broadcast(%cd), channel_id=6, replica_groups={{0,1,2,3},{4,5,6,7}}
  %ra = f32[8]{0} ragged-all-to-all(%cb, %cb, %i, %i, %i, %i), channel_id=7, replica_groups={{0,1,2,3,4,5,6,7}}
  %tok = token[] after-all()
  %send = (f32[8]{0}, u32[], token[]) send(%ra, %tok), channel_id=8, frontend_attributes={_xla_send_recv_source_target_pairs={{0,1},{1,2}}}
  %sd = token[] send-done(%send), channel_id=8
  %recv = (f32[8]{0}, u32[], token[]) recv(%tok), channel_id=8, frontend_attributes={_xla_send_recv_source_target_pairs={{0,1},{1,2}}}
  %rcd = (f32[8]{0}, token[]) recv-done(%recv), channel_id=8
  ROOT %out = f32[8]{0} get-tuple-element(%rcd), index=0
}
"""
"""What no compiler here writes of itself; XLA's own parser checks it, and its printer writes it."""

HERE = Path(__file__).parent
ROOT = HERE.parent.parent


def main(argv: list[str]) -> int:
    """Write the texts."""
    os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"
    os.environ["JAX_PLATFORMS"] = "cpu"
    os.environ["TPU_SKIP_MDS_QUERY"] = "1"
    import jax
    import numpy as np
    from jax.experimental import topologies

    from tests.sharding import programs

    on_tpu = argv == ["--tpu"]
    devices = topologies.get_topology_desc(platform="tpu", topology_name="v5e:2x4").devices if on_tpu else jax.devices()
    for program in programs.TPU if on_tpu else programs.CPU:
        f, arguments = program(programs.World(np.array(devices)))
        lowered = f.lower(*arguments)
        kind = f"{program.__name__}.{'tpu' if on_tpu else 'cpu'}.jax-{jax.__version__}"
        for end, text in (("hlo", lowered.compile().as_text()), ("mlir", lowered.as_text(debug_info=True))):
            place = HERE / "texts" / f"{kind}.{end}"
            place.parent.mkdir(exist_ok=True)
            place.write_text(text.replace(f"{ROOT}/", ""), encoding="utf-8")
            print(place.name, len(text))
    if not on_tpu:
        from jaxlib._hlo import hlo_module_from_text

        printed = hlo_module_from_text(SPELLINGS).to_string()
        (HERE / "texts" / f"spellings.xla.jax-{jax.__version__}.hlo").write_text(printed, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
