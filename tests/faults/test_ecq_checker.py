"""The checker of compacted queues finds the planted violation and nothing else."""

import pytest

from tests.faults.checker import check
from tests.faults.history import Line, What

Q = "ecq/V"


def accepted(at: float, seq: int, key: str = "k") -> Line:
    return Line(at, What.ACCEPTED, Q, seq, key, sha1=f"sha{seq}")


def delivered(at: float, seq: int, key: str = "k", dup: bool = False) -> Line:
    return Line(at, What.DELIVERED, Q, seq, key, dup=dup, sha1=f"sha{seq}")


def told(at: float, what: What, seq: int) -> Line:
    return Line(at, what, Q, seq)


WIPED = Line(50, What.FAULT, note="Redis lost everything", until=60)
GOOD = [accepted(1, 5), delivered(2, 5), told(3, What.ENDED, 5), told(3, What.POSITION, 5)]

CASES = [
    ("delivered", GOOD, {}),
    ("superseded", [accepted(1, 5), accepted(2, 6), delivered(3, 6)], {}),
    ("never delivered", [accepted(1, 5)], {"ecq lost": [(Q, 5)]}),
    ("an older one of the key was delivered", [accepted(1, 5), delivered(2, 5), accepted(3, 6)], {"ecq lost": [(Q, 6)]}),
    ("another key's was delivered", [accepted(1, 5), delivered(2, 6, "other")], {"ecq lost": [(Q, 5)]}),
    ("a client that sees no seq", [accepted(1, 5), Line(2, What.DELIVERED, Q, None, "k", sha1="sha5")], {}),
    ("put in flight again", [*GOOD, told(9, What.PUBLISHED, 5)], {"ecq resurrected": [(Q, 5)]}),
    ("delivered again much later", [*GOOD, delivered(99, 5)], {"ecq resurrected": [(Q, 5)]}),
    ("delivered again with DUP", [*GOOD, delivered(99, 5, dup=True)], {}),
    ("rewound", [*GOOD, told(8, What.REWOUND, 7), told(9, What.PUBLISHED, 5), delivered(99, 5)], {}),
    ("rewound before", [told(0, What.REWOUND, 4), *GOOD, told(9, What.PUBLISHED, 5)], {"ecq resurrected": [(Q, 5)]}),
    ("forgotten by Redis", [*GOOD[:2], told(49, What.ENDED, 5), WIPED, told(61, What.PUBLISHED, 5)], {}),
    ("position gone back", [*GOOD, told(9, What.POSITION, 4)], {"ecq position gone back": [(Q, 5)]}),
    ("position rewound", [*GOOD, told(8, What.REWOUND, 7), told(9, What.POSITION, 4)], {}),
    ("position forgotten by Redis", [*GOOD, WIPED, told(61, What.POSITION, 4)], {}),
]


@pytest.mark.parametrize(("lines", "broken"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_a_broken_promise_of_compacted_queues_is_caught(lines: list[Line], broken: dict[str, list[tuple[str, int]]]) -> None:
    assert check(lines).broken == broken
