"""A trainer whose environment holds a number that is none."""
import os

import addend
from common import finish, outcome

os.environ[os.environ["BAD_VARIABLE"]] = "three"
finish({"init": outcome(addend.init)})
