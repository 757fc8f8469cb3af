"""How a worker process is set up."""

from __future__ import annotations

import subprocess
import sys

# What a cache that is full and changes does: many objects come, and all live for a while. In a process of its own,
# since the collector belongs to the whole process. Prints how many objects each kind of collection looked at, at most.
GROW = """
import gc
from ostiary_gateway.server.worker_process import tune_garbage_collector

tune_garbage_collector()
largest = [0, 0, 0]

def note(phase, info):
    if phase == "start":
        young = sum(len(gc.get_objects(generation)) for generation in range(min(info["generation"], 1) + 1))
        largest[info["generation"]] = max(largest[info["generation"]], young)

gc.callbacks.append(note)
kept = [[number] for number in range(300_000)]
print(*largest)
"""


def test_the_garbage_collector_looks_at_few_objects_at_a_time() -> None:
    """Every request waits meanwhile. Those that a cache keeps are not looked at again and again."""
    output = subprocess.run([sys.executable, "-c", GROW], check=True, capture_output=True, text=True).stdout
    youngest, young, all_of_them = map(int, output.split())
    assert 0 < youngest <= 5_000
    assert 0 < young <= 15_000
    assert all_of_them == 0
