"""Shell front end: `mhnb` and its commands."""
