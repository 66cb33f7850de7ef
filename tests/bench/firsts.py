"""M4: from ``scripts/run`` to the first answered GET, once all is set up; and the import of the client's library."""

import http.client
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

from tests.bench.goals import Bound, Row
from tests.bench.load import CannotMeasure
from tests.bench.plan import Plan
from tests.live.replica import PROJECT
from tests.live.signs import free_port

PATIENCE_SECS = 20
LOOK_EVERY_SECS = 0.005
SCRIPT = PROJECT / "scripts" / "run"
IMPORT = "import time; began = time.perf_counter(); import discovery.client; print(time.perf_counter() - began)"


def measure(plan: Plan) -> Iterator[Row]:
    """M4."""
    answered = Row("M4", "scripts/run until the first answered GET", "s", Bound("<=", 1))
    imported = Row("M4", "import discovery.client", "ms", Bound("<=", 150))
    subprocess.run([PROJECT / "scripts" / "setup"], check=True)
    for _ in plan.rounds(plan.list_rounds):
        answered.add(_first_answer())
        imported.add(_import_ms())
        plan.tell(answered, imported)
    yield from (answered, imported)


def _import_ms() -> float:
    done = subprocess.run([sys.executable, "-c", IMPORT], cwd=PROJECT, capture_output=True, text=True, check=True)
    return float(done.stdout) * 1e3


def _first_answer() -> float:
    port = free_port()
    environment = {name: value for name, value in os.environ.items() if not name.startswith("DISCOVERY_")}
    began = time.monotonic()
    process = subprocess.Popen(
        [SCRIPT, "--listen", f"127.0.0.1:{port}", "--log-level", "error"],
        cwd=PROJECT,
        env=environment,
        stdin=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        while not _answers(port):
            if process.poll() is not None or time.monotonic() - began > PATIENCE_SECS:
                raise CannotMeasure(f"scripts/run answered no GET and ended with {process.poll()}")
            time.sleep(LOOK_EVERY_SECS)
        return time.monotonic() - began
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _answers(port: int) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("GET", "/pools")
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
