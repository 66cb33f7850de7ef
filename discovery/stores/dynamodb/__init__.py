"""The store in a table of DynamoDB, for replicas in several regions that share one global table.

``store`` is what the rest of the service opens; nothing else of this package is used outside of it, and nothing of it
is imported before that store is chosen: its client is an extra of the installation.
"""
