"""A stall, as the person sees it who waits: on the trainers' own standard error."""
from tests.support.launched import launched

OTHER_ORDER = """
import os, time, numpy, addend
addend.init()
name = ["a", "b"][addend.rank()]
handle = addend.push_pull_async(numpy.ones(3, numpy.float32), name)
time.sleep(12)
os._exit(0)
"""


def test_ranks_with_another_order_of_names_are_told_what_each_waits_for():
    for output in launched(OTHER_ORDER, 2):
        for name, other, missing in (("a", "b", 1), ("b", "a", 0)):
            said = [line for line in output.splitlines() if f"of tensor '{name}' is open" in line]
            assert len(said) == 1 and said[0].startswith("addend: round 1 of tensor"), output
            assert f"rank {missing} of this node has not pushed it, and rank {missing} waits for tensor '{other}' instead (its round 1)" in said[0]
