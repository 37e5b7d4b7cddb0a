"""The GPUs of this machine, with one rank per GPU, or one rank for all.

    %mhjax start --profile gpu                 one rank per GPU that nvidia-smi lists and CUDA_VISIBLE_DEVICES allows
    %mhjax start --profile gpu -n 2            2 ranks, each with the same number of GPUs
    ipcluster start --profile-dir DIR          the same ranks for ipyparallel's own tools: engine id = rank

This is a real IPython profile. `mhnb profile new NAME --from gpu` makes a copy that you can edit;
`mhnb profile show gpu` lists the settings.
For GPUs of other machines, use the ssh, slurm or mpi profile with `share_gpus`.
"""

c = get_config()  # noqa: F821  # IPython puts it there

# How the ranks are started. The hub runs on this machine.
c.Cluster.engine_launcher_class = "mhnb-gpu"
c.Cluster.controller_launcher_class = "mhnb"
# No delay is needed, because engines wait for the hub's connection file themselves.
c.Cluster.delay = 0

# "gpu": one rank per GPU. "host": one rank with all GPUs.
c.MhnbGpu.process_per = "gpu"
