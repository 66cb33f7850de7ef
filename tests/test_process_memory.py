"""What the process gives back, looked at from outside of Python's allocator."""

import subprocess
import sys

CROWD = """
from pathlib import Path
from discovery.process_memory import give_back

def resident():
    return int(Path("/proc/self/status").read_text().partition("VmRSS:")[2].split()[0]) // 1024

blocks = [bytearray(2000) for _ in range(40_000)]
kept = bytearray(2000)  # above all of them, so that the heap cannot simply shrink
standing = resident()
del blocks
left = resident()
give_back()
print(standing - left, standing - resident())
"""


def test_what_a_crowd_has_used_goes_back_to_the_system() -> None:
    ran = subprocess.run([sys.executable, "-c", CROWD], capture_output=True, text=True, check=True)
    by_itself, given_back = map(int, ran.stdout.split())
    assert by_itself < 40, "nothing is shown where the C library gives everything back by itself"
    assert given_back > 60
