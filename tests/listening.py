"""How a server of the tests ends that others may be connecting to at that moment."""

import asyncio


async def stop_listening(server: asyncio.Server) -> None:
    """Accept nothing more; connections that were accepted are there when this returns.

    One that is accepted in the turn of the loop in which its server closes is lost by asyncio and never closed, and
    fails whatever test runs when its socket is collected.
    """
    for listening in server.sockets:
        asyncio.get_running_loop().remove_reader(listening.fileno())
    await some_turns()
    server.close()


async def some_turns() -> None:
    """As many turns as it takes an accepted connection to begin, or an aborted one to close its socket."""
    for _ in range(5):
        await asyncio.sleep(0)
