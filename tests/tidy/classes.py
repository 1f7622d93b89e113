"""Sizes of the classes of lib/, services/ and tools/, and circles of calls among the files that implement a class.

Limits: 40 methods and 25 data members for each class, and no circle: if a method in a.cc calls a method of the same class in b.cc, then no
method in b.cc calls a method in a.cc, directly or through further files. A class that is cut into files by length, and not by
responsibility, exceeds one of these limits. classes.txt lists the classes that still do, with figures that may only fall:

    python3 tests/tidy/classes.py            prints the figures of the largest classes
    python3 tests/tidy/classes.py --write    lowers the figures in classes.txt to the present figures

The reader of C++ here knows declarations, not expressions. It relies on the tree's format (clang-format) and names (macros in capitals,
methods in CamelCase), and needs no compiler: the whole tree takes a second.
"""
import collections
import dataclasses
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
EXCEPTIONS = pathlib.Path(__file__).with_name("classes.txt")
FOLDERS = ("lib", "services", "tools")
LIMITS = {"methods": 40, "members": 25, "circle": 0}

TOKEN = re.compile(
    r'//[^\n]*|/\*.*?\*/'  # comments
    r'|(?m:^[ \t]*#(?:[^\n\\]|\\.)*)'  # directives, with continued lines
    r'|(?:u8|[uUL])?R"(?P<raw>[^(\s]*)\(.*?\)(?P=raw)"'
    r'|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])+\''
    r'|(?P<word>[A-Za-z_]\w*)|(?P<number>\.?\d(?:[\w.\']|[eEpP][+-])*)'
    r'|(?P<sign>::|->|\[\[|\]\]|&&|\|\||[-+*/%^&|!=<>]=|\S)', re.S)
CLOSING = {"(": ")", "{": "}", "[": "]", "[[": "]]"}
ANNOTATION = re.compile(r"(ABSL_[A-Z_]+|ADDEND_[A-Z_]+|__attribute__)$")


def tokens_of(text):
    """Words, signs and literals; a literal is '""' or '0'."""
    found = []
    for match in TOKEN.finditer(text):
        if match["word"] or match["sign"]:
            found.append(match[0])
        elif match["number"]:
            found.append("0")
        elif match[0][0] not in "/ \t#":
            found.append('""')
    return found


@dataclasses.dataclass
class Class:
    name: str  # with its outer classes: Outer::Inner
    path: str  # of the definition
    methods: list = dataclasses.field(default_factory=list)  # names; an overload counts again
    members: list = dataclasses.field(default_factory=list)  # data members that are not static


@dataclasses.dataclass
class Body:
    """A function's definition."""
    owner: str  # the class as written before ::, or ""
    name: str
    path: str
    tokens: list


class Reader:
    """Reads the declarations of a file."""

    def __init__(self, path, text):
        self.path, self.tokens, self.at = path, tokens_of(text), 0
        self.classes, self.bodies = [], []

    def read(self):
        while self.at < len(self.tokens):
            self.scope(None)
        return self

    def scope(self, owner):
        """Declarations up to the end of the scope, which is consumed."""
        while self.at < len(self.tokens) and self.tokens[self.at] != "}":
            self.declaration(owner)
        self.at += 1

    def balanced(self):
        """The tokens of the bracketed group that begins here, with its brackets."""
        start, opening = self.at, self.tokens[self.at]
        closing, depth = CLOSING[opening], 0
        while self.at < len(self.tokens):
            token = self.tokens[self.at]
            depth += (token == opening) - (token == closing)
            self.at += 1
            if depth == 0:
                break
        return self.tokens[start:self.at]

    def angles(self):
        """Skips the template's parameters or arguments that begin here."""
        depth = 0
        while self.at < len(self.tokens):
            token = self.tokens[self.at]
            if token in ("(", "{", "["):
                self.balanced()
                continue
            depth += (token == "<") - (token == ">")
            self.at += 1
            if depth == 0:
                return

    def declaration(self, owner):
        head = []  # of the declaration, at depth 0: no template arguments, parameters or annotations
        while self.at < len(self.tokens):
            token = self.tokens[self.at]
            if token == ";":
                self.at += 1
                self.variable(owner, head)
                return
            if token == ":" and head in (["public"], ["protected"], ["private"]):
                self.at += 1
                return
            if self.skipped(token, head):
                continue
            if token == "(":
                if self.function(owner, head):
                    return
            elif token == "=" and head[-1:] != ["operator"] or token == ":" and head:  # initial value, bit field, enum's type
                if not self.until_end(head):
                    self.variable(owner, head)
                    return
            elif token == "{":
                if self.block(owner, head):
                    return
            elif token == "}":
                raise ValueError(f"{self.path}: cannot read the declaration {' '.join(head)}")
            else:
                head.append(token)
                self.at += 1

    def skipped(self, token, head):
        """Skips template arguments, attributes, array bounds and annotations; whether there were any."""
        if token == "<" and head and head[-1] != "operator":
            self.angles()
        elif token == "[[" or token == "[" and "operator" not in head[-1:]:
            self.balanced()
        elif ANNOTATION.match(token):
            self.at += 1
            if self.tokens[self.at] == "(":
                self.balanced()
        else:
            return False
        return True

    def until_end(self, head):
        """Skips to ";" or ",", or to the "{" of an enum or of a class with bases; whether the declaration goes on."""
        kind = "enum" in head or any(word in head for word in ("class", "struct", "union")) and self.tokens[self.at] == ":"
        while self.at < len(self.tokens):
            token = self.tokens[self.at]
            if token == "{" and kind:
                return True
            if token in CLOSING:
                self.balanced()
            elif token == ";":
                self.at += 1
                return False
            elif token == "," and not kind and self.another_declarator():
                head.append(",")
                self.at += 1
                return True
            else:
                self.at += 1
        return False

    def another_declarator(self):
        """Whether the comma here separates declarators, and is not in template arguments of an initial value."""
        return bool(re.fullmatch(r"[A-Za-z_]\w*", self.tokens[self.at + 1])) and self.tokens[self.at + 2] in ("=", ";", ",", "{", "[")

    def variable(self, owner, head):
        if owner is None or not head or head[0] in ("using", "typedef", "friend", "static_assert", "enum", "template", "extern"):
            return
        if "static" in head or head[0] in ("class", "struct", "union") and len(head) == 2:
            return
        names = [head[position - 1] for position, token in enumerate([*head, ","]) if token == ","]
        owner.members += names

    def function(self, owner, head):
        """At a declarator's "(": reads a function to its end. False: it was not a function's."""
        parameters = self.balanced()
        if parameters[1:2] == ["*"]:  # a pointer to a function
            head.append(parameters[2])
            if self.tokens[self.at] == "(":
                self.balanced()
            return False
        if self.tokens[self.at:self.at + 1] == ["("] and head[-1:] == ["operator"]:  # operator()
            parameters, head = self.balanced(), [*head, "()"]
        if head[0] in ("using", "typedef", "static_assert") or "alignas" in head[-1:] or "decltype" in head[-1:] or head[-1:] == ["noexcept"]:
            return False
        deleted, body = self.after_parameters()
        words = [word for word in head if word not in ("*", "&", "&&")]
        name = words[-1] if words else ""
        if "operator" in head:
            name = "operator" + "".join(head[head.index("operator") + 1:])
        elif words[-2:-1] == ["~"]:
            name = "~" + name
        qualifiers = []
        if "operator" not in head:
            position = len(words) - 1 - name.startswith("~")
            while position >= 2 and words[position - 1] == "::":
                qualifiers.insert(0, words[position - 2])
                position -= 2
        if owner is not None and head[0] != "friend":
            if not deleted:
                owner.methods.append(name)
            if body is not None:
                self.bodies.append(Body(owner.name, name, self.path, body))
        elif body is not None:
            self.bodies.append(Body("::".join(qualifiers), name, self.path, body))
        return True

    def after_parameters(self):
        """(whether deleted or defaulted, body or None); consumes the end of the declaration."""
        while self.at < len(self.tokens):
            token = self.tokens[self.at]
            if token == ";":
                self.at += 1
                return False, None
            if token == "=":
                special = self.tokens[self.at + 1] in ("delete", "default")
                while self.tokens[self.at] != ";":
                    self.at += 1
                self.at += 1
                return special, None
            if token == "{":
                return False, self.balanced()
            if token == ":":
                return False, self.initializers()
            if token in CLOSING:
                self.balanced()
            elif token == "<":
                self.angles()
            else:
                self.at += 1
        return False, None

    def initializers(self):
        """A constructor's initializers and body, which may call methods too."""
        start = self.at
        self.at += 1
        while True:
            while self.tokens[self.at] not in ("(", "{", "<"):
                self.at += 1
            if self.tokens[self.at] == "<":
                self.angles()
                continue
            self.balanced()
            if self.tokens[self.at] != ",":
                break
        self.balanced()
        return self.tokens[start:self.at]

    def block(self, owner, head):
        """At a "{" outside parameters: a namespace, a class, an enum or an initial value. Whether the declaration ends."""
        if "namespace" in head or head[:1] == ["extern"]:
            self.at += 1
            self.scope(owner)
            return True
        kind = next((word for word in ("enum", "class", "struct", "union") if word in head), None)
        if kind is None or kind == "enum":
            self.balanced()
            return False
        named = [word for word in head[head.index(kind) + 1:] if word != "final"]
        prefix = owner.name + "::" if owner is not None else ""
        found = Class(prefix + ("".join(named) or f"({kind})"), self.path)
        self.at += 1
        self.scope(found)
        self.classes.append(found)
        if not named and owner is not None and self.tokens[self.at] == ";":  # its members are its owner's
            owner.members += found.members
        if self.tokens[self.at] == ";":
            self.at += 1
            return True
        head[:] = ["of-type"]
        return False


def files():
    return [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*")) if path.suffix in (".h", ".cc")]


def read_all():
    readers = []
    for path in files():
        try:
            readers.append(Reader(path.relative_to(ROOT).as_posix(), path.read_text()).read())
        except (ValueError, IndexError) as error:
            raise ValueError(f"{path}: a declaration that tests/tidy/classes.py cannot read: {error}") from error
    return readers


def folder_of(path):
    return path.rpartition("/")[0]


def calls_of(body, names):
    """The names among `names` that the body calls on its own object, or takes the address of."""
    tokens, called = body.tokens, set()
    for position, token in enumerate(tokens[:-1]):
        if token not in names:
            continue
        before = tokens[position - 1]
        if before in (".", "->") and tokens[position - 2] not in ("this", "self"):
            continue
        address = before == "::" and tokens[position - 3] == "&"
        if before == "::" and tokens[position - 2] != body.owner.rpartition("::")[2]:
            continue
        if tokens[position + 1] == "(" or address:
            called.add(token)
    return called


def components(graph):
    """Sets of nodes that reach each other, of two nodes or more (Tarjan's algorithm)."""
    index, low, stack, found = {}, {}, [], []

    def visit(node):
        index[node] = low[node] = len(index)
        stack.append(node)
        for target in sorted(graph.get(node, ())):
            if target not in index:
                visit(target)
                low[node] = min(low[node], low[target])
            elif target in stack:
                low[node] = min(low[node], index[target])
        if low[node] == index[node]:
            position = stack.index(node)
            component = stack[position:]
            del stack[position:]
            if len(component) > 1:
                found.append(set(component))
    for node in sorted(graph):
        if node not in index:
            visit(node)
    return found


def unit_of(path):
    """A header and the source of the same name are a unit: inline methods may call the others, and be called."""
    return path.rpartition(".")[0]


def circles(readers):
    """{(folder, class): units of files whose methods call each other in a circle}."""
    defined = collections.defaultdict(lambda: collections.defaultdict(set))  # class -> method -> units
    bodies = collections.defaultdict(list)
    for body in (body for reader in readers for body in reader.bodies if body.owner):
        key = (folder_of(body.path), body.owner)
        defined[key][body.name].add(unit_of(body.path))
        bodies[key].append(body)
    found = {}
    for key, methods in defined.items():
        graph = collections.defaultdict(set)
        for body in bodies[key]:
            unit = unit_of(body.path)
            for name in calls_of(body, methods):
                if unit not in methods[name]:  # an overload in the same unit is taken for the callee
                    graph[unit] |= methods[name]
        knots = components(graph)
        if knots:
            found[key] = set().union(*knots)
    return found


def figures(readers):
    """{(folder, class): {measure: figure}} of every class, with the measures of LIMITS."""
    found = collections.defaultdict(lambda: dict.fromkeys(LIMITS, 0))
    for each in (each for reader in readers for each in reader.classes):
        figure = found[folder_of(each.path), each.name]
        figure["methods"] = max(figure["methods"], len(each.methods))
        figure["members"] = max(figure["members"], len(each.members))
    for key, units in circles(readers).items():
        found[key]["circle"] = len(units)
    return found


def above_limits(found):
    """{(folder, class, measure): figure} of the figures that exceed their limit."""
    return {(*key, measure): figure for key, measures in sorted(found.items()) for measure, figure in measures.items() if figure > LIMITS[measure]}


def exceptions():
    lines = [line.split() for line in EXCEPTIONS.read_text().splitlines() if line and not line.startswith("#")]
    return {(folder, name, measure): int(figure) for folder, name, measure, figure in lines}


def include_circles():
    """Sets of files that include each other in a circle."""
    known = {path.relative_to(ROOT).as_posix(): path for path in files()}
    return components({name: {target for target in re.findall(r'^\s*#\s*include "([^"]+)"', path.read_text(), re.M) if target in known}
                       for name, path in known.items()})


def write(found, former):
    """A figure that is higher than before keeps the former limit: the test complains about it."""
    with open(EXCEPTIONS, "w", encoding="ascii") as file:
        file.write("# Classes above the limits of tests/tidy/classes.py: folder, class, measure, figure. The list may only get shorter, and the figures lower.\n")
        for key, figure in above_limits(found).items():
            if not former or key in former:
                file.write(f"{' '.join(key)} {min(figure, former.get(key, figure))}\n")


def main():
    found = figures(read_all())
    largest = sorted(found.items(), key=lambda item: max(item[1]["methods"] / LIMITS["methods"], item[1]["members"] / LIMITS["members"], item[1]["circle"]))
    for (folder, name), measures in largest[-30:]:
        print(f"{folder + ' ' + name:<50}" + "".join(f"{measure:>10} {figure:3}" for measure, figure in measures.items()))
    if sys.argv[1:] == ["--write"]:
        write(found, exceptions() if EXCEPTIONS.exists() else {})


if __name__ == "__main__":
    main()
