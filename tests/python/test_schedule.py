"""bench/schedule.py: the ideal network of bench/models."""
import pytest

from bench.schedule import ideal_iteration_s


def test_an_iteration_without_computing_takes_the_time_of_the_network():
    assert ideal_iteration_s([100, 200, 300], 0, 2.0) == pytest.approx(2)


def test_an_iteration_with_little_to_carry_takes_the_time_of_computing():
    assert ideal_iteration_s([100] * 10, 3.0, 1e-6) == pytest.approx(3)


def test_a_single_tensor_does_not_overlap():
    assert ideal_iteration_s([100], 3.0, 2.0) == pytest.approx(5)


def test_the_first_tensor_interrupts_the_last():
    """Two tensors, 1 s each on the network; passes of 1 + 1 and 2 + 2 s: the last tensor's sum has 2 s while the first one is computed."""
    assert ideal_iteration_s([100, 100], 6.0, 2.0) == pytest.approx(7), "the first tensor's sum of 1 s has nothing to overlap with"
    # The network needs 8 s: 6 s of the passes but for what lies between the last sum and the first gradient, 1 + 2 s.
    assert ideal_iteration_s([100, 100], 6.0, 8.0) == pytest.approx(11)
