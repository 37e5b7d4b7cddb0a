"""`%mhjax VERB`: for each verb its flags, and a short function over the cluster."""
