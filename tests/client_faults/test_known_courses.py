"""Courses by which clients once showed something wrong, or were late: found by chance, and cut short since."""

from typing import Any

import pytest

from tests.client_faults.course import Course

Steps = list[tuple[Any, ...]]

COURSES = [
    pytest.param(
        *("URLs", 2, 1),
        [
            [("doubt", 0.0), ("doubt", 3.0)],
            [("doubt", 0.0), ("doubt", 3.0), ("stall", 3.0, "thaw", [[("p0", True)]] * 3, 4.0)],
        ],
        id="a stream that stood still brings old contents when looks have brought newer ones",
    ),
    pytest.param(
        *("URLs", 1, 6000),
        [[("doubt", 1.1), ("undone", "p0", [("p2", True)], 0.4), ("babble", 11, [("p2", True), ("p0", True)], 0.4)]],
        id="an event that cannot be understood carries an id",
    ),
    pytest.param(
        *("addresses", 2, 13127),
        [[("doubt", 1.1), ("freeze", 0, 3.0, "never", 0.0)]],
        id="nothing is complete, and the stream is half open",
    ),
    pytest.param(
        *("balancer", 1, 19924),
        [
            [("cut amid", 305, [("p2", True)], 0.0), ("refuse", 0, 1.0, 0.4)],
            [("cut amid", 523, [("p4", True), ("p0", True), ("p1", True)], 0.4), ("freeze", 1, 0.4, "never", 0.05)],
        ],
        id="all connections are half open at once",
    ),
    pytest.param(
        *("URLs", 2, 857),
        [
            [
                *[("doubt", 0.0), ("refuse", 2, 0.4, 1.1)],
                *[("fall behind", 1, 1.5, [("p1", False)], 0.4), ("names", "hangs", 3.0, 1.1)],
            ]
        ],
        id="a list that lags and is not complete merges what was deleted",
    ),
    pytest.param(
        *("addresses", 3, 182),
        [
            [
                ("fall behind", 2, 1.5, [("p0", False), ("p4", False)], 0.05),
                ("cut amid", 301, [("p2", True), ("p3", False), ("p1", False), ("p4", True)], 0.002),
                ("proxy", 1, "nothing", 23, 1.0, 3.0),
            ]
        ],
        id="a list that lags has what was deleted, and nothing else is heard for a while",
    ),
    pytest.param(
        *("URLs", 1, 0),
        [[("change", [("p0", True)], 3.0)], [("vanish", 0, 12.0, 10.0), ("change", [("p0", True)], 0.5)]],
        id="packets were lost for so long that every attempt to connect waits",
    ),
    pytest.param(
        *("URLs", 2, 0),
        [
            [
                *[("change", [("p0", False)], 0.0), ("restart", 1, 3.0, 0.0, 0, [[("p2", True)]], 0.0)],
                *[("slow", 0.9, [[("p1", False)]], 3.0), ("stall", 0.05, "never", [[("p0", False)]], 0.0)],
            ]
        ],
        id="answers were slow, and then all connections are half open at once",
    ),
]


@pytest.mark.parametrize(("way", "count", "seed", "bursts"), COURSES)
def test_it_shows_what_was_told_and_is_current(way: str, count: int, seed: int, bursts: list[Steps]) -> None:
    course = Course(way, count)
    course.run(seed, bursts)
    assert course.oracle.judged > 20
