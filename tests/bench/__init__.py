"""The benchmark: the cost of a cell, a start and a stop with mhnb and with its peers, in one run. See README.md here."""
