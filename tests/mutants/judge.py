"""Whether the unit tests notice a mutant."""
import json

from tests.mutants.workplace import Broken

SURVIVED, NOTICED, UNCOMPILED, SAME_CODE = "survived", "noticed", "does not compile", "same code"


class Judge:
    """Judges mutants. The file `memory` has the outcomes, for the next run of the same tree."""

    def __init__(self, workplace, limit_s, memory):
        self._workplace = workplace
        self._limit_s = limit_s
        self._memory = memory
        self._known = json.loads(memory.read_text()) if memory.exists() else {}
        self._sound = set()  # tests that pass without a mutant

    def judge(self, mutant):
        """(outcome, the test that failed)"""
        key = f"{self._workplace.digest} {mutant.path}:{mutant.line} {mutant.start} {mutant.replacement}"
        if key not in self._known:
            self._known[key] = self._judge(mutant)
            self._memory.write_text(json.dumps(self._known))
        return tuple(self._known[key])

    def _judge(self, mutant):
        place = self._workplace
        compiled = place.object_of(mutant.path)
        if compiled is not None:
            self._build_unchanged(compiled)
            unchanged = place.content(compiled)
        with place.planted(mutant):
            if compiled is not None:
                if not place.build(compiled):
                    return UNCOMPILED, ""
                if place.content(compiled) == unchanged:
                    return SAME_CODE, ""
            failed = self._first_failure(mutant)
        if failed is None:
            return SURVIVED, ""
        test, failure = failed
        if failure is None:
            return UNCOMPILED, ""
        self._check_unchanged(test)
        return NOTICED, failure

    def _first_failure(self, mutant):
        """(test, how it failed or None if it was not built), or None."""
        for test in self._workplace.tests_of(mutant.path):
            if not self._workplace.build(f"tests/{test}"):
                return test, None
            failure = self._workplace.test(test, self._limit_s)
            if failure is not None:
                return test, failure
        return None

    def _build_unchanged(self, target):
        if not self._workplace.build(target):
            raise Broken(f"the tree does not compile without a mutant:\n{self._workplace.output}")

    def _check_unchanged(self, test):
        if test in self._sound:
            return
        self._build_unchanged(f"tests/{test}")
        failure = self._workplace.test(test, self._limit_s)
        if failure is not None:
            raise Broken(f"without a mutant there is {failure}")
        self._sound.add(test)
