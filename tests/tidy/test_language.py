"""No folder's comments and documents get harder to read than they are (language.py)."""
from tests.tidy import language

SLACK = 1.0  # per 1,000 words
LEAST_MARKS = 3  # more or less of them in a small folder are no trend


def slack(words):
    return max(SLACK, 1000 * LEAST_MARKS / words)


def test_no_folder_has_more_marks_than_it_had():
    limits = language.limits()
    worse = [f"{folder}: {rate:.1f} times '{mark}' in 1,000 words, at most {limits[folder][mark]}"
             for folder, (words, rates) in language.figures().items() if folder in limits
             for mark, rate in rates.items() if rate > limits[folder][mark] + slack(words)]
    assert not worse, "name the subject, by a noun:\n" + "\n".join(worse)


def test_every_folder_has_a_limit():
    missing = set(language.figures()) - set(language.limits())
    assert not missing, f"python3 tests/tidy/language.py --write: {sorted(missing)}"


def test_limits_follow_what_has_been_reached():
    limits = language.limits()
    better = [f"{folder}: {rate:.1f} times '{mark}', and the limit is {limits[folder][mark]}"
              for folder, (words, rates) in language.figures().items() if folder in limits
              for mark, rate in rates.items() if rate < limits[folder][mark] - 2 * slack(words)]
    assert not better, "python3 tests/tidy/language.py --write:\n" + "\n".join(better)
