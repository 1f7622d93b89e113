"""Push-pulls the same values in tensors of different types on the wire, and reports the results' digests."""
import addend
from common import RANK, finish, outcome
from tests.support import reference


def main():
    values = reference.random_values("float32", 20_003, [1, RANK])
    report = {}

    def digest(name, **options):
        return reference.digest(addend.push_pull(values, name, op=addend.Average, **options))

    def run():
        addend.init()
        report["stochastic"] = [digest("of the job") for _ in range(3)]
        report["nearest"] = digest("nearest", wire="int8")
        report["named"] = digest("named", wire="same")
        size = addend.size()
        addend.shutdown()
        ranks = [[reference.random_values("float32", 20_003, [1, rank])] for rank in range(size)]
        report["exact"] = reference.digest(reference.push_pull("Average", "float32", ranks))

    finish({**outcome(run), **report})


main()
