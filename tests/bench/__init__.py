"""The bench: what a cell, a start and a stop cost, with mhnb and with its peers, in one run. See README.md here."""
