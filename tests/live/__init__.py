"""The live suite: real processes, real sockets, a real Redis or Valkey server."""
