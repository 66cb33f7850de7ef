"""The tests; directories mirror ``discovery``, and ``live`` drives the program over real sockets."""
