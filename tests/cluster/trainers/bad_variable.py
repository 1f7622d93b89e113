"""A trainer with an environment variable that should be a number and is not."""
import os

import addend
from common import finish, outcome

os.environ[os.environ["BAD_VARIABLE"]] = "three"
finish({"init": outcome(addend.init)})
