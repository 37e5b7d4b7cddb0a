"""The commands of `%mhjax`: for each its flags, and a short function that calls the cluster."""
