"""scripts/mutants: what is drawn, and how a mutant is judged."""
import pathlib
import subprocess
import sys
import threading
import time

import pytest

from tests.mutants import __main__ as program
from tests.mutants import draw, judge, workplace

ROOT = pathlib.Path(__file__).resolve().parents[2]


def changes(code):
    """{(kind, line after the change)} of a function with this body."""
    return {(mutant.kind, mutant.after) for mutant in draw.mutants_of("a.cc", f"void F() {{\n  {code}\n}}\n")}


@pytest.mark.parametrize("code,kind,after", [
    ("if (a < b) Go();", "comparison inverted", "if (a >= b) Go();"),
    ("if (a < b) Go();", "comparison shifted", "if (a <= b) Go();"),
    ("if (a >= b) Go();", "comparison shifted", "if (a > b) Go();"),
    ("if (a == b) Go();", "comparison inverted", "if (a != b) Go();"),
    ("if (a && b) Go();", "and, or exchanged", "if (a || b) Go();"),
    ("if (!a.empty()) Go();", "negation dropped", "if (a.empty()) Go();"),
    ("return a + b;", "sum inverted", "return a - b;"),
    ("x = f(2);", "number shifted", "x = f(3);"),
    ("x = f(2);", "number shifted", "x = f(1);"),
    ("Go(from, to.at());", "arguments swapped", "Go(to.at(), from);"),
    ("return true;", "return inverted", "return false;"),
    ("rounds_.clear();", "statement dropped", "{}"),
    ("links_[node]->Close(why);", "statement dropped", "{}"),
    ("passes_ = 0;", "statement dropped", "{}"),
    ("++passes_;", "statement dropped", "{}"),
    ("*count += size;", "statement dropped", "{}"),
    ("if (a) passes_ = 0;", "statement dropped", "if (a) {}"),
    ("for (auto& x : all) x.Close();", "statement dropped", "for (auto& x : all) {}"),
    ("loop_->Post([this] { Stop(); });", "statement dropped", "loop_->Post([this] { {} });"),
])
def test_an_operator_changes_one_line(code, kind, after):
    assert (kind, after) in changes(code)


@pytest.mark.parametrize("code", [
    "// if (a < b) and !c",
    "/* a == b &&\n  c == d */",
    "#define LESS(a, b) (a < b)",
    "#include <a/b.h>",
    "assert(a < b && !c);",
    "static_assert(sizeof(a) == 4);",
    'spdlog::info("{} of {}",\n               a + 1, !b);',
    'spdlog::warn("it failed: a < b");',
    "std::vector<std::pair<int, int>> pairs;",
    "const Names names;",
    "using A = std::array<char, 4>;",
    "constexpr int kMost = 4;",
    "auto&& thing = Take<2>();",
    "return std::max(a, b);",
    "return;",
    "const char quote = '<';",
    "const auto count = 1'000'000;",
])
def test_comments_texts_checks_and_types_stay(code):
    assert changes(code) == set()


def test_the_text_of_an_error_is_no_condition():
    found = changes('return absl::InternalError(absl::StrFormat("%d < %d", a + 1, b));')
    assert found == set()


def test_a_line_in_the_middle_of_a_statement_is_not_dropped():
    code = "Call(first,\n       Other(second));\n  const int x =\n      Get(third);"
    assert not [after for kind, after in changes(code) if kind == "statement dropped"]


def sources():
    folder = ROOT / "lib/plan"
    return {path.relative_to(ROOT).as_posix(): path.read_text() for path in folder.iterdir() if path.suffix in (".h", ".cc")}


def test_a_mutant_changes_its_line_alone():
    texts = sources()
    for mutant, _ in zip(draw.draw(texts, seed=5), range(200)):
        before, after = texts[mutant.path].split("\n"), mutant.applied(texts[mutant.path]).split("\n")
        assert [number for number, (a, b) in enumerate(zip(before, after), 1) if a != b] == [mutant.line] and len(before) == len(after)
        assert (before[mutant.line - 1].strip(), after[mutant.line - 1].strip()) == (mutant.before, mutant.after)


def test_a_seed_decides_the_mutants_and_every_mutant_comes_once():
    texts = sources()
    first = list(draw.draw(texts, seed=1))
    assert first == list(draw.draw(dict(reversed(texts.items())), seed=1))
    second = list(draw.draw(texts, seed=2))
    assert first != second and set(first) == set(second) and len(set(first)) == len(first) > 300
    assert len({mutant.kind for mutant in first[:40]}) >= 7


def test_mutants_of_the_list_are_not_drawn():
    texts = sources()
    left_out = next(draw.draw(texts, seed=1))
    assert left_out.key not in {mutant.key for mutant in draw.draw(texts, seed=1, skip={left_out.key})}


def test_the_list_of_equivalent_mutants_needs_reasons():
    text = "# It is the\n# last.\na.cc: if (x < y) {  => if (x <= y) {\na.cc: F(); => {}\n\n# Another.\nb.cc: x = 0; => {}\n"
    assert set(draw.read_equivalent(text).values()) == {"It is the last.", "Another."}
    with pytest.raises(ValueError, match="line 1 "):
        draw.read_equivalent("a.cc: F(); => {}\n")
    with pytest.raises(ValueError, match="line 2 "):
        draw.read_equivalent("# Reason\nF(); is dropped\n")


def test_every_mutant_of_our_list_exists():
    """A line that was changed since may need a test now."""
    listed = set(draw.read_equivalent(program.EQUIVALENT.read_text()))
    there = {mutant.key for path, _, _ in listed if (ROOT / path).exists() for mutant in draw.mutants_of(path, (ROOT / path).read_text())}
    assert listed <= there, sorted(listed - there)


@pytest.fixture
def repository(tmp_path):
    root = tmp_path / "root"
    root.mkdir()
    subprocess.run(["git", "init", "-q", root], check=True)
    (root / ".gitignore").write_text("/build*/\n")
    (root / "a.cc").write_text("int a;\n")
    (root / "lib").mkdir()
    (root / "lib/b.cc").write_text("int b;\n")
    return root


def test_the_copy_follows_the_tree_and_keeps_the_times_of_equal_files(repository):
    tree = repository / "build-mutants/tree"
    first = workplace.refresh(repository, tree)
    times = {path: path.stat().st_mtime_ns for path in tree.rglob("*.cc")}
    (tree / "build").mkdir()
    (tree / "build/kept.o").write_text("object")
    (repository / "a.cc").unlink()
    (repository / "lib/c.cc").write_text("int c;\n")
    (tree / "lib/b.cc").write_text("a mutant that an interrupted run has left\n")
    assert workplace.refresh(repository, tree) != first
    assert {path.relative_to(tree).as_posix() for path in tree.rglob("*") if path.is_file()} == {".gitignore", "lib/b.cc", "lib/c.cc", "build/kept.o"}
    assert (tree / "lib/b.cc").read_text() == "int b;\n"
    (repository / "a.cc").write_text("int a;\n")
    (repository / "lib/c.cc").unlink()
    assert workplace.refresh(repository, tree) == first
    assert (tree / "a.cc").stat().st_mtime_ns > times[tree / "a.cc"]
    kept = (tree / "lib/b.cc").stat().st_mtime_ns
    workplace.refresh(repository, tree)
    assert (tree / "lib/b.cc").stat().st_mtime_ns == kept


def test_the_nearest_tests_come_first():
    inputs = {
        "bench_test": {"tests/unit/bench/a_test.cc", "lib/plan/shares.cc"},
        "plan_test": {"tests/unit/plan/models_test.cc", "lib/plan/shares.cc", "lib/plan/models.cc"},
        "shares_test": {"tests/unit/plan/shares_test.cc", "lib/plan/shares.cc", "lib/plan/models.cc"},
        "wire_test": {"tests/unit/wire/frame_test.cc", "lib/wire/frame.cc"},
    }
    assert workplace.near_first("lib/plan/shares.h", inputs, near_only=False) == ["shares_test", "plan_test", "bench_test"]
    assert workplace.near_first("lib/plan/shares.h", inputs, near_only=True) == ["shares_test", "plan_test"]
    assert workplace.near_first("lib/none/a.cc", inputs, near_only=False) == []


def test_a_command_is_ended_at_its_limit_with_its_children(monkeypatch):
    monkeypatch.setattr(workplace, "_GRACE_S", 0.3)
    start = time.monotonic()
    status, _ = workplace.run(["sh", "-c", "sleep 60 & wait"], limit_s=0.2)
    assert status is None and time.monotonic() - start < 20
    status, _ = workplace.run(["sh", "-c", "trap '' TERM; sleep 60; sleep 60"], limit_s=0.2)
    assert status is None and time.monotonic() - start < 40
    assert workplace.run([sys.executable, "-c", "print('out'); exit(3)"]) == (3, "out\n")


def test_a_second_run_is_refused_while_the_first_works(tmp_path):
    first = workplace.claim(tmp_path)
    with pytest.raises(workplace.Broken, match="another run"):
        workplace.claim(tmp_path)
    first.close()
    workplace.claim(tmp_path).close()


def test_a_failure_names_the_test_the_signal_or_the_hang():
    assert workplace.failure_of(1, "x\n[  FAILED  ] A.B (2 ms)\n[  FAILED  ] A.C (2 ms)\n") == "A.B"
    assert workplace.failure_of(1, "[  FAILED  ] All/Sum.Adds/3, where GetParam() = 4 (0 ms)\n") == "All/Sum.Adds/3"
    assert workplace.failure_of(-11, "") == "SIGSEGV"
    assert workplace.failure_of(66, "") == "exit status 66"
    assert workplace.failure_of(None, "") == "a hang" and workplace.failure_of(0, "") is None


def test_the_lock_is_held_against_others(tmp_path):
    path, order = tmp_path / "lock", []

    def other():
        with workplace.held(path):
            order.append("other")

    with workplace.held(path):
        thread = threading.Thread(target=other)
        thread.start()
        thread.join(0.2)
        order.append("first")
    thread.join()
    assert order == ["first", "other"]


MUTANT = next(mutant for mutant in draw.mutants_of("a.cc", "bool F() {\n  return a < b;\n}\n") if mutant.kind == "comparison shifted")


class Place:
    """A Workplace that builds nothing: `failures` is {test: how it fails with the mutant}."""

    output = "error"

    def __init__(self, failures=None, unbuildable=(), same=False, sound=True):
        self.digest = "digest"
        self.failures, self.unbuildable, self.same, self.sound = failures or {}, unbuildable, same, sound
        self.mutated = False
        self.ran = []

    def tests_of(self, path):
        return ["near_test", "far_test"]

    def object_of(self, path):
        return "a.o"

    def build(self, target):
        return not (self.mutated and target in self.unbuildable)

    def content(self, target):
        return "mutant" if self.mutated and not self.same else "unchanged"

    def test(self, name, limit_s):
        self.ran.append((name, self.mutated))
        return self.failures.get(name) if self.mutated or not self.sound else None

    def planted(self, mutant):
        place = self

        class Planted:
            def __enter__(self):
                place.mutated = True

            def __exit__(self, *_):
                place.mutated = False

        return Planted()


def judged(place, tmp_path):
    return judge.Judge(place, 60, tmp_path / "outcomes.json").judge(MUTANT)


def test_a_mutant_is_noticed_by_the_first_test_that_fails(tmp_path):
    place = Place({"near_test": "A.B of near_test"})
    assert judged(place, tmp_path) == (judge.NOTICED, "A.B of near_test")
    assert place.ran == [("near_test", True), ("near_test", False)], "the test passes without the mutant"


def test_a_hang_notices_a_mutant_too(tmp_path):
    assert judged(Place({"far_test": "a hang of far_test"}), tmp_path) == (judge.NOTICED, "a hang of far_test")
    found = {judge.NOTICED: [(MUTANT, "a hang of far_test"), (MUTANT, "A.B of near_test")], judge.SURVIVED: [(MUTANT, "")],
             judge.UNCOMPILED: [(MUTANT, "")], judge.SAME_CODE: []}
    assert program.summary(found) == ("noticed 2 of 3 (1 by a hang; drawn again: 1 that did not compile, 0 with the same machine code)")


def test_a_mutant_survives_if_every_test_passes(tmp_path):
    place = Place()
    assert judged(place, tmp_path) == (judge.SURVIVED, "")
    assert place.ran == [("near_test", True), ("far_test", True)]


@pytest.mark.parametrize("place,outcome", [
    (Place(unbuildable=["a.o"]), judge.UNCOMPILED),
    (Place(unbuildable=["tests/near_test"]), judge.UNCOMPILED),
    (Place(same=True), judge.SAME_CODE),
])
def test_a_mutant_without_a_program_of_its_own_is_drawn_again(place, outcome, tmp_path):
    assert judged(place, tmp_path) == (outcome, "") and not place.ran


def test_a_test_that_fails_without_a_mutant_ends_the_run(tmp_path):
    with pytest.raises(workplace.Broken, match="without a mutant there is A.B of near_test"):
        judged(Place({"near_test": "A.B of near_test"}, sound=False), tmp_path)


def test_an_outcome_is_remembered_while_the_tree_is_the_same(tmp_path):
    judged(Place(), tmp_path)
    again = Place()
    assert judged(again, tmp_path) == (judge.SURVIVED, "") and not again.ran
    again.digest = "another tree"
    judged(again, tmp_path)
    assert again.ran


def test_only_mutants_that_were_tested_count(tmp_path, monkeypatch, capsys):
    outcomes = iter([(judge.UNCOMPILED, ""), (judge.SURVIVED, ""), (judge.SAME_CODE, ""), (judge.NOTICED, "A.B of near_test")])
    monkeypatch.setattr(judge.Judge, "judge", lambda self, mutant: next(outcomes))
    place = Place()
    place.tree = tmp_path / "tree"
    found = program.judge_mutants(program.options_of(["--count=2"]), iter([MUTANT] * 4), place)
    assert {outcome: len(mutants) for outcome, mutants in found.items()} == dict.fromkeys((judge.UNCOMPILED, judge.SURVIVED, judge.SAME_CODE, judge.NOTICED), 1)
    assert "2/2 noticed" in capsys.readouterr().out
