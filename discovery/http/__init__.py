"""How the lists leave: routes, streams, limits, and the server that carries them."""
