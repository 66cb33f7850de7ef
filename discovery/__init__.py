"""Service discovery for pools of language-model servers: who is alive, what it serves, where it answers."""

__version__ = "0.1.0"
