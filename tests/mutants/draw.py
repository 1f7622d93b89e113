"""Draws mutants: sources with a single line changed, in a way that a test should notice."""
import random
import re
from typing import NamedTuple

_UNTOUCHED = re.compile(
    r'//[^\n]*|/\*.*?\*/|R"(\w*)\(.*?\)\1"|"(?:\\.|[^"\\\n])*"|(?<!\w)\'(?:\\.|[^\'\\\n])+\'|^[ \t]*#(?:\\\n|[^\n])*',
    re.S | re.M)
# Log lines, assertions and texts.
_QUIET_CALL = re.compile(r"\b(?:spdlog::\w+|(?:static_)?assert|absl::Str(?:Format|Cat|Join))\(|\bABSL_\w+\(")
_RELATION = re.compile(r"(?<=\s)(<=|>=|==|!=|<|>)(?=\s)")
_INVERTED = {"<": ">=", "<=": ">", ">": "<=", ">=": "<", "==": "!=", "!=": "=="}
_SHIFTED = {"<": "<=", "<=": "<", ">": ">=", ">=": ">"}
_LOGIC = re.compile(r"(?<=\s)(&&|\|\|)(?=\s)")
_NEGATION = re.compile(r"(?<=[\s(,])!(?=[\w(*])")
_SUM = re.compile(r"(?<=\S )([-+])(?= \S)")
_DIGIT = re.compile(r"(?<![\w.'<])(\d)(?![\w.'>])")
_ARGUMENT = r"[A-Za-z_][\w.]*(?:->\w+)*(?:\(\))?"
_PAIR = re.compile(rf"\b(?!if|while|switch|max\b|min\b)\w+\(({_ARGUMENT}), ({_ARGUMENT})\)")
_RETURN = re.compile(r"\breturn (true|false);")
_CHAIN = r"\*?[A-Za-z_][\w:.]*(?:(?:->|\.)\w+|\[[^\]]*\]|\([^()]*\))*"
_STATEMENT = re.compile(rf"(?:{_CHAIN} (?:[-+*/|&^%]|<<|>>)?= [^=].*;|(?:\+\+|--).*;|{_CHAIN}\(.*\);)$")
_NO_STATEMENT = re.compile(r"(?:return|if|for|while|switch|case|using|delete|else|do|throw|friend|template)\b|.* = (?:delete|default);")
_BODY = re.compile(r"\{ ([^{};]+;) \}")


class Mutant(NamedTuple):
    """`before` and `after` are the line without indentation."""

    path: str
    line: int
    kind: str
    before: str
    after: str
    start: int
    end: int
    replacement: str

    def applied(self, text):
        return text[:self.start] + self.replacement + text[self.end:]

    @property
    def key(self):
        return (self.path, self.before, self.after)


def _blank(text, start, end):
    return text[:start] + re.sub(r"[^\n]", " ", text[start:end]) + text[end:]


def _end_of_call(text, opening):
    depth = 0
    for at in range(opening, len(text)):
        depth += {"(": 1, ")": -1}.get(text[at], 0)
        if depth == 0:
            return at + 1
    return len(text)


def masked(text):
    """The text, blank where no mutant belongs; offsets stay."""
    text = _UNTOUCHED.sub(lambda found: re.sub(r"[^\n]", " ", found[0]), text)
    for found in list(_QUIET_CALL.finditer(text)):
        text = _blank(text, found.start(), _end_of_call(text, found.end() - 1))
    return text


def _is_statement(text):
    return bool(_STATEMENT.match(text)) and not _NO_STATEMENT.match(text) and text.count("(") == text.count(")")


def _after_condition(line):
    """The offset of a statement behind a condition or an else, or 0."""
    found = re.match(r"\s*(?:\} )?(?:else )?(?:if(?: constexpr)?|for|while) \(", line)
    if found:
        return _end_of_call(line, found.end() - 1) + 1
    found = re.match(r"\s*(?:\} )?else (?!\{|if\b)", line)
    return found.end() if found else 0


def _statements(code):
    at, former = 0, "{"
    for line in code.split("\n"):
        text = line.rstrip()
        starts = former.endswith(("{", "}", ";", ":", ")"))
        begin = _after_condition(text) or len(text) - len(text.lstrip())
        if starts and _is_statement(text[begin:]):
            yield at + begin, at + len(text)
        for body in _BODY.finditer(text):
            if _is_statement(body[1]):
                yield at + body.start(1), at + body.end(1)
        former = text or former
        at += len(line) + 1


def sites(text):
    code = masked(text)
    for found in _RELATION.finditer(code):
        yield "comparison inverted", *found.span(), _INVERTED[found[0]]
        if found[0] in _SHIFTED:
            yield "comparison shifted", *found.span(), _SHIFTED[found[0]]
    for found in _LOGIC.finditer(code):
        yield "and, or exchanged", *found.span(), "||" if found[0] == "&&" else "&&"
    for found in _NEGATION.finditer(code):
        yield "negation dropped", *found.span(), ""
    for found in _SUM.finditer(code):
        yield "sum inverted", *found.span(), "-" if found[0] == "+" else "+"
    for found in _DIGIT.finditer(code):
        line = code[code.rfind("\n", 0, found.start()) + 1:found.start()]
        if "constexpr" not in line and "case " not in line:
            yield "number shifted", *found.span(), str(int(found[0]) + 1)
            if found[0] != "0":
                yield "number shifted", *found.span(), str(int(found[0]) - 1)
    for found in _PAIR.finditer(code):
        if found[1] != found[2]:
            yield "arguments swapped", found.start(1), found.end(2), f"{found[2]}, {found[1]}"
    for found in _RETURN.finditer(code):
        yield "return inverted", *found.span(1), "false" if found[1] == "true" else "true"
    for start, end in _statements(code):
        yield "statement dropped", start, end, "{}"


def mutants_of(path, text):
    for kind, start, end, replacement in sites(text):
        first, last = text.rfind("\n", 0, start) + 1, text.find("\n", end)
        last = len(text) if last < 0 else last
        after = text[first:start] + replacement + text[end:last]
        yield Mutant(path, text.count("\n", 0, start) + 1, kind, text[first:last].strip(), after.strip(), start, end, replacement)


def draw(sources, seed, skip=frozenset()):
    """Yields the mutants of {path: text} in the seed's order, each kind equally often."""
    kinds = {}
    for path in sorted(sources):
        for mutant in mutants_of(path, sources[path]):
            if mutant.key not in skip:
                kinds.setdefault(mutant.kind, []).append(mutant)
    chance = random.Random(seed)
    for kind in sorted(kinds):
        chance.shuffle(kinds[kind])
    while kinds:
        kind = chance.choice(sorted(kinds))
        yield kinds[kind].pop()
        if not kinds[kind]:
            del kinds[kind]


def read_equivalent(text):
    """{key: reason} of a list: lines '# reason', then lines 'path: before => after'."""
    found, reason, open_ = {}, [], False
    for number, line in enumerate(text.splitlines(), 1):
        if line.startswith("#"):
            reason = reason + [line[1:].strip()] if open_ else [line[1:].strip()]
            open_ = True
        elif line.strip():
            parts = re.fullmatch(r"(\S+): (.*) => (.*)", line.strip())
            if parts is None or not reason:
                raise ValueError(f"line {number} is not 'path: before => after' below a reason: {line}")
            found[parts.groups()] = " ".join(reason)
            open_ = False
    return found
