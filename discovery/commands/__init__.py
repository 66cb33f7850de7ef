"""One file per command of the command line; commands never import each other."""
