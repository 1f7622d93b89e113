"""Sums up the JUnit files and step statuses that scripts/test leaves in a folder, for people and for programs.

The last line is "N passed, N failed, N skipped". A step that failed without naming a failed test counts as a single failure.
"""
import collections
import itertools
import pathlib
import sys
import xml.etree.ElementTree as ElementTree

_SHOWN = 5  # of the tests with the same reason to skip


def read_cases(path):
    """Yields (name, outcome, reason) for each test case of a JUnit file of CTest or pytest."""
    for case in ElementTree.parse(path).getroot().iter("testcase"):
        owner = case.get("classname", "")
        name = case.get("name") if owner in ("", case.get("name")) else f"{owner}.{case.get('name')}"
        skipped = case.find("skipped")
        failed = case.find("failure") if case.find("failure") is not None else case.find("error")
        if failed is not None or case.get("status") == "fail":
            yield name, "failed", ""
        elif skipped is not None or case.get("status") in ("notrun", "disabled"):
            reason = skipped.get("message", "") if skipped is not None else ""
            yield name, "skipped", reason or "not run"
        else:
            yield name, "passed", ""


def main(folder):
    folder = pathlib.Path(folder)
    count = collections.Counter()
    failed, skipped = [], collections.defaultdict(list)
    for line in (folder / "steps.tsv").read_text().splitlines():
        step, status, title = line.split("\t")
        failed_before = count["failed"]
        results = [*folder.glob(f"{step}.xml"), *folder.glob(f"{step}/*.xml")]
        if results:
            for name, outcome, reason in itertools.chain.from_iterable(map(read_cases, results)):
                count[outcome] += 1
                if outcome == "failed":
                    failed.append(f"{step}: {name}")
                elif outcome == "skipped":
                    skipped[reason].append(f"{step}: {name}")
        elif status == "0":
            count["passed"] += 1
        if status != "0" and count["failed"] == failed_before:
            count["failed"] += 1
            failed.append(f"{step}: {title} (exit status {status})")
    print("\n== Summary")
    for reason, names in sorted(skipped.items()):
        print(f"skipped, {reason}:")
        print("".join(f"  {name}\n" for name in names[:_SHOWN]), end="")
        if len(names) > _SHOWN:
            print(f"  and {len(names) - _SHOWN} more like these")
    if failed:
        print("failed:")
        print("".join(f"  {name}\n" for name in failed), end="")
    print(f"{count['passed']} passed, {count['failed']} failed, {count['skipped']} skipped")
    return 1 if count["failed"] else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
