"""The page at ``/`` in a real browser, against real replicas."""
