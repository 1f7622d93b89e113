"""Readability of the comments and documents of each folder, in figures: pronouns per 1,000 words that stand in place of a noun.

A sentence whose subject is missing or a pronoun has to be solved before it can be understood. MARKS has the pronouns that are counted; LevelDB's
figures are 2.1, 0.1 and 0.5. language.txt has the limit of each folder, which may only fall:

    python3 tests/tidy/language.py            prints the figures
    python3 tests/tidy/language.py --write    lowers the limits to the present figures
"""
import collections
import io
import pathlib
import re
import sys
import tokenize

ROOT = pathlib.Path(__file__).resolve().parents[2]
LIMITS = pathlib.Path(__file__).with_name("language.txt")
MARKS = {"one": re.compile(r"\b(one|ones|none)\b"), "what": re.compile(r"\bwhat\b"), "who": re.compile(r"\b(who|whoever|whom)\b")}
# Smaller folders say too little for a figure per 1,000 words.
LEAST_WORDS = 300


def folder_of(path):
    parts = path.relative_to(ROOT).parts
    if parts[0] in ("lib", "services", "tests") and len(parts) > 2:
        return "/".join(parts[:2])
    return parts[0]


def python_comments(text):
    """Comments, and strings that are statements: docstrings."""
    before = tokenize.NEWLINE
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT or (token.type == tokenize.STRING and before in (tokenize.NEWLINE, tokenize.INDENT)):
            yield token.string
        if token.type not in (tokenize.NL, tokenize.COMMENT):
            before = token.type


def comments_of(path):
    text = path.read_text(errors="replace")
    if path.suffix == ".md":
        return re.sub(r"```.*?```|`[^`\n]*`", " ", text, flags=re.S)
    if path.suffix == ".py":
        return re.sub(r"\bNone\b", " ", " ".join(python_comments(text)))  # a value, not a pronoun
    # Strings first: they may contain text like a comment.
    found = re.findall(r'"(?:\\.|[^"\\\n])*"|//([^\n]*)|/\*(.*?)\*/', text, re.S)
    return " ".join(line or block for line, block in found)


def sources():
    for path in sorted(ROOT.rglob("*")):
        parts = path.relative_to(ROOT).parts
        if path.suffix in (".h", ".cc", ".cu", ".c", ".proto", ".py", ".md") and path.is_file() and not any(part.startswith(("build", ".")) or part == "node_modules" for part in parts):
            yield path


def figures():
    """{folder: (words, {mark: per 1,000 words})}, of folders with enough words."""
    words, marks = collections.Counter(), collections.defaultdict(collections.Counter)
    for path in sources():
        text, folder = comments_of(path).lower(), folder_of(path)
        words[folder] += len(re.findall(r"[a-z']+", text))
        for mark, pattern in MARKS.items():
            marks[folder][mark] += len(pattern.findall(text))
    return {folder: (count, {mark: 1000 * marks[folder][mark] / count for mark in MARKS}) for folder, count in sorted(words.items()) if count >= LEAST_WORDS}


def limits():
    lines = [line.split() for line in LIMITS.read_text().splitlines() if line and not line.startswith("#")] if LIMITS.exists() else []
    return {folder: dict(zip(MARKS, map(float, numbers))) for folder, *numbers in lines}


def write(found, former):
    """Limits that are lower than the present figures stay: they are for the test to complain about."""
    with open(LIMITS, "w", encoding="ascii") as file:
        file.write(f"# Marks per 1,000 words of comments and documents, at most: {', '.join(MARKS)}. tests/tidy/language.py writes this file.\n")
        for folder, (_, rates) in found.items():
            numbers = [min(round(rate + 0.05, 1), former.get(folder, {}).get(mark, 1000)) for mark, rate in rates.items()]
            file.write(f"{folder} {' '.join(f'{number:.1f}' for number in numbers)}\n")


def main():
    found = figures()
    for folder, (words, rates) in found.items():
        print(f"{folder:<24}{words:>8} words" + "".join(f"{mark:>8} {rate:5.1f}" for mark, rate in rates.items()))
    if sys.argv[1:] == ["--write"]:
        write(found, limits())


if __name__ == "__main__":
    main()
