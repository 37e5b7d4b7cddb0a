"""The commands: what `%mhjax` and `mhnb` have in common, so that each is described once."""
