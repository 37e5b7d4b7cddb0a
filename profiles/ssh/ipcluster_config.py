"""Machines reached by ssh, with one login per machine.

    %mhjax start --profile ssh --hosts a,b[1-3]          in a notebook
    ipcluster start --profile-dir DIR          the same ranks for ipyparallel's own tools: engine id = rank

This is a real IPython profile. `mhnb profile new NAME --from ssh` makes a copy that you can edit;
settings that are missing here come from your ssh config.
`%mhjax start --set NAME=VALUE` overrides a setting once; `mhnb profile show ssh` lists them all.
"""

c = get_config()  # noqa: F821  # IPython puts it there

# How the ranks are started. The hub runs on this machine.
c.Cluster.engine_launcher_class = "mhnb-ssh"
c.Cluster.controller_launcher_class = "mhnb"
# No delay is needed, because engines wait for the hub's connection file themselves.
c.Cluster.delay = 0
# For `ipcluster start` only: the address of this machine that hosts connect to, if its name does not resolve to it.
# c.Cluster.controller_ip = "10.0.0.1"

# -- hosts, and ranks per host

# c.MhnbSsh.hosts = "a,b[1-3],me@c:2222"
# c.MhnbSsh.hostfile = "~/hosts"  # one host per line, such as `a slots=2`
# c.MhnbSsh.ranks_per_host = 1

# -- login: key-based, because `ssh HOST true` must work without a password

# c.MhnbSsh.user = "me"
# c.MhnbSsh.port = 22
# c.MhnbSsh.key_file = "~/.ssh/id_ed25519"
# c.MhnbSsh.config_file = "~/.ssh/config"
# c.MhnbSsh.extra = ["ProxyJump=gate"]

# -- environment on the hosts; by default the path of this notebook's interpreter, which needs a shared file system

# c.MhnbSsh.python = "/opt/python/bin/python"
# c.MhnbSsh.venv = "~/venvs/jax"
# c.MhnbSsh.conda = "jax"
# c.MhnbSsh.setup = ". /etc/profile && module load cuda"
# c.MhnbSsh.cwd = "~/work"
# c.MhnbSsh.environment = {"NCCL_DEBUG": "INFO"}
# Divide the GPUs of a host among its ranks.
# c.MhnbSsh.share_gpus = True
