"""The store on Redis, for production: ``store.RedisStore``, and what it is made of.

Two lines carry what is asked of Redis (``server``, ``link``), an address says where it answers on each topology
(``address``), ``writing`` and ``reading`` hold the commands, ``subscription`` the announcements, and ``signs`` judges
whether data was lost.
"""
