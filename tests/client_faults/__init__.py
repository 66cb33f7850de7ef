"""The client against whatever networks, proxies and replicas do to it: on virtual time, and over real sockets."""
