"""Reports its places in the job, and whether the parameter `elements` of random values were summed."""
import numpy as np

import addend
from common import RANK, finish, parameters


def main():
    addend.init()
    names = ("rank", "size", "local_rank", "local_size", "node_rank", "num_nodes", "nodes_present", "nodes_waiting")
    places = {name: getattr(addend, name)() for name in names}
    values = np.random.default_rng(RANK).standard_normal(parameters()["elements"]).astype(np.float32)
    addend.push_pull(values, "values", op=addend.Sum)
    addend.shutdown()
    finish(places)


main()
