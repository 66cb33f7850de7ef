"""The benchmark behind ``scripts/bench``: the service against references that do the least possible, in one run."""
