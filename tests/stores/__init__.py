"""Tests of the stores and of what a replica knows of them."""
