"""The shortest possible iteration of a simulated training (bench/training.h): an ideal network that serves by priority."""


class IdealNetwork:
    """Sums tensors one after the other at a constant rate and without latency, those of the lowest number first."""

    def __init__(self, bytes_per_s):
        self.bytes_per_s = bytes_per_s
        self.now = 0.0
        self.left = {}  # bytes of the tensors that are pushed and not yet summed

    def push(self, tensor, size):
        self.left[tensor] = size

    def run_until(self, time):
        while self.left and self.now < time:
            first = min(self.left)
            served = min(self.left[first], (time - self.now) * self.bytes_per_s)
            self.now += served / self.bytes_per_s
            self.left[first] -= served
            if self.left[first] < 1:
                del self.left[first]
        self.now = max(self.now, time)

    def run_until_summed(self, tensor):
        while tensor in self.left:
            first = min(self.left)
            self.now += self.left.pop(first) / self.bytes_per_s


def ideal_iteration_s(sizes, compute_s, network_s, iterations=6):
    """The length of an iteration in the steady state. `sizes`: bytes of the tensors, all of which the network sums in `network_s`."""
    network = IdealNetwork(sum(sizes) / network_s)
    share = compute_s / len(sizes)
    began = 0.0
    for _ in range(iterations):
        began = network.now
        for tensor in range(len(sizes)):
            network.run_until_summed(tensor)
            network.run_until(network.now + share / 3)
        for tensor in reversed(range(len(sizes))):
            network.run_until(network.now + share * 2 / 3)
            network.push(tensor, sizes[tensor])
    return network.now - began
