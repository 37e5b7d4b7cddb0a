"""The guard's pure rules: agreement before a launch, comparison of launches after a cell, provenance and host data of arrays."""
