"""When a process is told to end by signals, and when whoever told it has lost patience.

In the corridor, for the commands that serve; knows nothing of what has to end, and in which order.
"""

import asyncio
import contextlib
import signal

SIGNALS = (signal.SIGTERM, signal.SIGINT)
SAME_WISH_SECS = 0.25
"""Signals this close together are one wish told twice: a wrapper passes on what the terminal has sent to both."""


class Ending:
    """The first signal asks for an end in order, another one for an end at once."""

    def __init__(self) -> None:
        self._told = asyncio.Event()
        self._hurried = asyncio.Event()
        self._told_at = 0.0

    def heed_signals(self) -> None:
        """From now on SIGTERM and SIGINT end the process as told here."""
        loop = asyncio.get_running_loop()
        for number in SIGNALS:
            loop.add_signal_handler(number, self.tell)

    def heed_nothing(self) -> None:
        """Everything has ended: what is still told must not turn a clean exit code into that of a killed process."""
        loop = asyncio.get_running_loop()
        signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)  # between the two steps a signal would kill
        for number in SIGNALS:
            loop.remove_signal_handler(number)
            signal.signal(number, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)

    def tell(self) -> None:
        """A signal has come."""
        now = asyncio.get_running_loop().time()
        if not self._told.is_set():
            self._told_at = now
            self._told.set()
        elif now - self._told_at > SAME_WISH_SECS:
            self._hurried.set()

    @property
    def hurried(self) -> bool:
        """Whether everything has to end at once."""
        return self._hurried.is_set()

    async def told(self) -> None:
        """Wait for the first signal."""
        await self._told.wait()

    async def until_hurried(self) -> None:
        """Wait for the signal that asks for an end at once."""
        await self._hurried.wait()

    async def pause(self, secs: float) -> None:
        """Wait so long, or until the end has to come at once."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(secs):
                await self._hurried.wait()
