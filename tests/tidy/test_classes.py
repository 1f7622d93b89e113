"""No class grows beyond the limits of classes.py, and its files do not call each other in a circle."""
import pytest

from tests.tidy import classes

SLACK = 0.1  # of a listed figure, before the list has to follow


@pytest.fixture(scope="module")
def readers():
    return classes.read_all()


@pytest.fixture(scope="module")
def above(readers):
    return classes.above_limits(classes.figures(readers))


def test_no_class_exceeds_the_limits(above):
    listed = classes.exceptions()
    worse = [f"{' '.join(key)}: {figure}, at most {listed.get(key, classes.LIMITS[key[2]])}"
             for key, figure in above.items() if figure > listed.get(key, 0)]
    assert not worse, "give a part of the class its own object, with a test (files of a circle: python3 tests/tidy/classes.py):\n" + "\n".join(worse)


def test_the_list_of_exceptions_follows_the_classes(above):
    better = [f"{' '.join(key)}: {above.get(key, 'within the limits')}, listed with {figure}"
              for key, figure in classes.exceptions().items() if above.get(key, 0) < figure * (1 - SLACK)]
    assert not better, "python3 tests/tidy/classes.py --write:\n" + "\n".join(better)


def test_headers_do_not_include_each_other():
    assert not classes.include_circles()


def read(**files):
    return [classes.Reader(f"lib/x/{name.replace('_', '.')}", text).read() for name, text in files.items()]


SHAPE = """
#pragma once
#define MANY(x) class Hidden { \\
  void No(); };
namespace addend {
enum class Kind : uint8_t { kA, kB };
template <typename T, int n = 3>
class Box final : public Base<T, (1 > 0)> {
 public:
  explicit Box(int a, std::map<int, int> b = {}) : a_(a), f_{nullptr} { Fill("}", '{'); }  // } not counted
  Box(const Box&) = delete;
  ~Box() override { Drain(); }
  [[nodiscard]] bool Fill(const char* text, char end) const noexcept ABSL_LOCKS_EXCLUDED(mu_);
  Box& operator=(const Box& other);
  bool operator()(int a) const { return a < a_; }
  void Drain();
  static int Count();
  friend bool Same(const Box& a, const Box& b) { return a.a_ == b.a_; }
  using Call = std::function<void(int)>;
  struct Inner {
    int x = 0, y = 1;
    uint32_t low : 4;
  };

 private:
  Mutex mu_;
  int a_ ABSL_GUARDED_BY(mu_) = 0;
  std::function<void(int, Kind)> f_;
  int (*plain_)(int) = nullptr;
  std::array<int, (n > 2 ? n : 2)> values_{};
  struct {
    int anonymous;
  };
  struct Pair {
    int first;
  } pair_;
  static constexpr int kLimit = 4;
};
class Later;
}  // namespace addend
"""


def test_declarations_are_counted():
    found = {each.name: each for reader in read(a_h=SHAPE) for each in reader.classes}
    assert found["Box"].methods == ["Box", "~Box", "Fill", "operator=", "operator()", "Drain", "Count"]
    assert found["Box"].members == ["mu_", "a_", "f_", "plain_", "values_", "anonymous", "pair_"]
    assert found["Box::Inner"].members == ["x", "y", "low"]
    assert "Hidden" not in found and "Later" not in found


CLASS = "class A {\n public:\n  void First();\n  void Second();\n  void Third();\n  int a_;\n};\n"


def circle(**bodies):
    return classes.circles(read(a_h=CLASS, **bodies))


def test_a_circle_of_files_is_found():
    one_way = circle(a_cc="void A::First() { Second(); }", b_cc="void A::Second() { log(a_); }")
    assert not one_way
    both = circle(a_cc="void A::First() { Second(); }\nvoid A::Third() {}", b_cc="void A::Second() { this->Third(); }")
    assert both == {("lib/x", "A"): {"lib/x/a", "lib/x/b"}}
    through_three = circle(a_cc="void A::First() { Second(); }", b_cc="void A::Second() { [this] { Third(); }(); }",
                           c_cc="void A::Third() { loop_.Post(&A::First); }")
    assert through_three == {("lib/x", "A"): {"lib/x/a", "lib/x/b", "lib/x/c"}}


def test_calls_of_other_objects_make_no_circle():
    assert not circle(a_cc="void A::First() { Second(); }\nvoid A::Third() {}", b_cc="void A::Second() { other_.Third(); next->First(); B::Third(); }")


def test_a_class_above_a_limit_is_reported():
    many = "class B {\n" + "".join(f"  void Do{i}();\n" for i in range(41)) + "".join(f"  int a{i}_;\n" for i in range(26)) + "};\n"
    assert classes.above_limits(classes.figures(read(b_h=many))) == {("lib/x", "B", "methods"): 41, ("lib/x", "B", "members"): 26}
