"""Runs the program that the test has written for this rank."""
from common import RANK, parameters

exec(parameters()["programs"][RANK], {"__name__": "__main__", "RANK": RANK})
