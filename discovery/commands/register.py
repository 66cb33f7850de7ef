"""``discovery register``: a heartbeat agent, which keeps one pool registered until it is told to stop.

For relays that do not register themselves, as a sidecar. The client library does the work and logs each change of
state; this command turns signals into the end of its block, and a refusal into words.
"""

import asyncio
import logging
import signal
import sys

from discovery.client import Client
from discovery.errors import Rejected
from discovery.logs import event, one_line
from discovery.settings import RegisterSettings, access

logger = logging.getLogger(__name__)


def run(settings: RegisterSettings) -> int:
    """Keep the pool registered until SIGTERM or SIGINT; 2 when the service's first answer refuses it."""
    try:
        asyncio.run(_until_told_to_stop(settings))
    except Rejected as error:
        _explain(error)
        return 2
    return 0


async def _until_told_to_stop(settings: RegisterSettings) -> None:
    registering = asyncio.create_task(_keep_registered(settings))
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, _stop_once, registering, number)
    try:
        await registering
    except asyncio.CancelledError:
        if not registering.cancelled():
            raise


def _stop_once(registering: asyncio.Task[None], number: int) -> None:
    """End the block. A second signal changes nothing: deregistering has a deadline and must not be cut short."""
    if not registering.cancelling():
        event(logger, logging.INFO, "heartbeat.stopping", "stopping: %s", signal.Signals(number).name)
        registering.cancel()


async def _keep_registered(settings: RegisterSettings) -> None:
    async with (
        Client(**access(settings)) as client,
        client.register(settings.registration, keep_on_exit=settings.keep_on_exit) as heartbeat,
    ):
        await heartbeat.settled()
        await asyncio.Event().wait()


def _explain(error: Rejected) -> None:
    """The refusal, and below it one line for each fault."""
    print(one_line(f"discovery: the registration is refused: {error}"), file=sys.stderr)
    for fault in error.faults:
        print(one_line(f"  {fault.path}: {fault.message}"), file=sys.stderr)
