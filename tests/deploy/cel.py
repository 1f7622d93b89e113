"""The part of the Common Expression Language that the chart's admission policies use, validations, and the two kinds of mutation.

It is not the API server's implementation, which test_policies.py asks whether it takes the expressions: here they are evaluated. Unsupported
expressions are errors.
"""
import copy
import json
import re

_TOKEN = re.compile(r'\s*("(?:\\.|[^"\\])*"|\d+|[A-Za-z_]\w*|\|\||&&|==|!=|>=|<=|\.\?|\[\?|[-+*/?:.,!<>()\[\]{}])')
_KEYS = {"containers": "name", "initContainers": "name", "volumes": "name", "env": "name", "volumeMounts": "mountPath", "imagePullSecrets": "name",
         "resourceClaims": "name"}


class CelError(Exception):
    pass


class Optional:
    """A value that may be missing."""

    def __init__(self, *values):
        self.values = values

    def select(self, key):
        return Optional(*(value[key] for value in self.values if key in value))


class Message(dict):
    """An object of a named type, such as Object.spec.volumes."""

    def __init__(self, type_name, fields):
        super().__init__(fields)
        self.type = type_name
        for name, value in fields.items():
            for item in value if isinstance(value, list) else [value]:
                if isinstance(item, Message) and type_name != "JSONPatch" and item.type != f"{type_name}.{name}":
                    raise CelError(f"{type_name}.{name} has a value of type {item.type}")


def _tokens(text):
    tokens, position = [], 0
    while text[position:].strip():
        match = _TOKEN.match(text, position)
        if not match:
            raise CelError(f"cannot read: {text[position:position + 40]}")
        tokens.append(match[1])
        position = match.end()
    return tokens


class _Parser:
    """Every method returns a function of the environment {name: value}."""

    def __init__(self, text):
        self.tokens = _tokens(text)

    def peek(self):
        return self.tokens[0] if self.tokens else None

    def take(self, expected=None):
        if not self.tokens or expected not in (None, self.tokens[0]):
            raise CelError(f"'{expected}' expected at {' '.join(self.tokens[:8])}")
        return self.tokens.pop(0)

    def whole(self):
        result = self.expression()
        if self.tokens:
            raise CelError(f"left over: {' '.join(self.tokens[:8])}")
        return result

    def expression(self):
        condition = self.binary(0)
        if self.peek() != "?":
            return condition
        self.take("?")
        yes = self.binary(0)
        self.take(":")
        no = self.expression()
        return lambda env: yes(env) if _boolean(condition(env)) else no(env)

    LEVELS = [("||",), ("&&",), ("==", "!=", "<", ">", "in"), ("+", "-"), ("*", "/")]

    def binary(self, level):
        if level == len(self.LEVELS):
            return self.unary()
        left = self.binary(level + 1)
        while self.peek() in self.LEVELS[level]:
            left = _operation(self.take(), left, self.binary(level + 1))
        return left

    def unary(self):
        if self.peek() == "!":
            self.take()
            inner = self.unary()
            return lambda env: not _boolean(inner(env))
        return self.postfix()

    def postfix(self):
        name, value = self.primary()
        while self.peek() in (".", "[", "{", ".?", "[?"):
            token = self.take()
            if token in (".?", "[?"):
                field = self.take() if token == ".?" else None
                value, name = _select(value, (lambda env, field=field: field) if field else self.expression()), None
                if not field:
                    self.take("]")
            elif token == "[":
                value, name = _index(value, self.expression()), None
                self.take("]")
            elif token == "{":
                if name is None:
                    raise CelError("an object of no type")
                value, name = self.message(name), None
            else:
                field = self.take()
                if field in _METHODS and self.peek() == "(":
                    self.take()
                    value, name = _method(field, value, self.items(")")), None
                elif self.peek() == "(":
                    value, name = self.macro(field, value), None
                else:
                    value, name = _index(value, lambda env, field=field: field), f"{name}.{field}" if name else None
        return value

    def primary(self):
        token = self.take()
        if token == "(":
            inner = self.expression()
            self.take(")")
            return None, inner
        if token == "[":
            items = self.items("]")
            return None, lambda env: _homogeneous([item(env) for item in items])
        if token == "{":
            pairs = self.pairs(self.expression)
            return None, lambda env: dict(zip([k(env) for k, _ in pairs], _homogeneous([v(env) for _, v in pairs])))
        if token[0] == '"' or token.isdigit() or token in ("true", "false"):
            literal = json.loads(token)
            return None, lambda env: literal
        if self.peek() == "(":
            return None, self.call(token)
        return token, lambda env: _variable(env, token)

    def items(self, end):
        items = []
        while self.peek() != end:
            items.append(self.expression())
            if self.peek() != end:
                self.take(",")
        self.take(end)
        return items

    def pairs(self, key):
        pairs = []
        while self.peek() != "}":
            name = key()
            self.take(":")
            pairs.append((name, self.expression()))
            if self.peek() != "}":
                self.take(",")
        self.take("}")
        return pairs

    def message(self, name):
        pairs = self.pairs(self.take)
        if name.split(".")[0] not in ("Object", "JSONPatch"):
            raise CelError(f"there is no type {name}")
        return lambda env: Message(name, {field: value(env) for field, value in pairs})

    def call(self, function):
        self.take("(")
        if function == "has":
            path = [self.take()]
            while self.peek() == ".":
                self.take()
                path.append(self.take())
            self.take(")")
            return lambda env: _has(env, path)
        argument, = self.items(")")
        convert = {"int": int, "string": str}.get(function)
        if convert is None:
            raise CelError(f"there is no function {function}")
        return lambda env: convert(argument(env))

    def macro(self, name, target):
        self.take("(")
        variable = self.take()
        self.take(",")
        body = self.expression()
        self.take(")")
        if name == "map":
            return lambda env: [body({**env, variable: item}) for item in target(env)]
        if name == "exists":
            return lambda env: any(_boolean(body({**env, variable: item})) for item in target(env))
        raise CelError(f"there is no macro {name}")


def _boolean(value):
    if not isinstance(value, bool):
        raise CelError(f"{value!r} is not a bool")
    return value


def _variable(env, name):
    if name not in env:
        raise CelError(f"there is no variable {name}")
    return env[name]() if callable(env[name]) else env[name]


def _index(value, key):
    def get(env):
        container, at = value(env), key(env)
        if at not in container:
            raise CelError(f"no such key: {at}")
        found = container[at]
        return found() if callable(found) else found
    return get


def _select(value, key):
    def get(env):
        container = value(env)
        return (container if isinstance(container, Optional) else Optional(container)).select(key(env))
    return get


_METHODS = {
    "hasValue": lambda target: bool(target.values),
    "orValue": lambda target, other: target.values[0] if target.values else other,
    # RE2's $ is the end of the text, and not also a place before its last line feed.
    "matches": lambda target, pattern: re.search(re.sub(r"\$$", r"\\Z", pattern), target) is not None,
}


def _method(name, target, arguments):
    return lambda env: _METHODS[name](target(env), *(argument(env) for argument in arguments))


def _has(env, path):
    value = _variable(env, path[0])
    for name in path[1:-1]:
        if name not in value:
            raise CelError(f"no such key: {name}")
        value = value[name]
    return path[-1] in value


def _homogeneous(values):
    kinds = {getattr(value, "type", type(value)) for value in values}
    if len(kinds) > 1:
        raise CelError(f"a list or map of different types: {kinds}")
    return values


def _operation(operator, left, right):
    def apply(env):
        if operator == "||":
            return _boolean(left(env)) or _boolean(right(env))
        if operator == "&&":
            return _boolean(left(env)) and _boolean(right(env))
        a, b = left(env), right(env)
        if operator == "in":
            return a in b
        if isinstance(a, Optional) or isinstance(b, Optional):
            raise CelError(f"{operator} of a value that may be missing")
        if type(a) is not type(b):
            raise CelError(f"{a!r} {operator} {b!r}: different types")
        return {"==": a == b, "!=": a != b}[operator] if operator in ("==", "!=") else _ARITHMETIC[operator](a, b)
    return apply


_ARITHMETIC = {"<": lambda a, b: a < b, ">": lambda a, b: a > b, "+": lambda a, b: a + b, "-": lambda a, b: a - b, "*": lambda a, b: a * b,
               "/": lambda a, b: a // b}


def evaluate(expression, env):
    return _Parser(expression).whole()(env)


def admit(policy, pod, namespace):
    """The pod as a MutatingAdmissionPolicy leaves it; the pod itself where a condition does not hold."""
    spec, pod = policy["spec"], copy.deepcopy(pod)
    env = {"object": pod, "request": {"namespace": namespace}}
    variables = {}
    for variable in spec["variables"]:  # evaluated when used, as the API server does
        expression = variable["expression"]
        variables[variable["name"]] = lambda expression=expression: evaluate(expression, env)
    if not all(_boolean(evaluate(condition["expression"], env)) for condition in spec["matchConditions"]):
        return pod
    env["variables"] = variables
    for mutation in spec["mutations"]:
        if mutation["patchType"] == "JSONPatch":
            for patch in evaluate(mutation["jsonPatch"]["expression"], env):
                _patch(pod, patch)
        else:
            _merge(pod, evaluate(mutation["applyConfiguration"]["expression"], env), "")
    return pod


def refusals(policy, pod, namespace):
    """The messages with which a ValidatingAdmissionPolicy refuses the pod."""
    env = {"object": pod, "request": {"namespace": namespace}}
    if not all(_boolean(evaluate(condition["expression"], env)) for condition in policy["spec"]["matchConditions"]):
        return []
    return [one["message"] for one in policy["spec"]["validations"] if not _boolean(evaluate(one["expression"], env))]


def _patch(pod, patch):
    assert patch["op"] == "add", patch
    *parents, last = patch["path"].split("/")[1:]
    target = pod
    for parent in parents:
        target = target[parent]
    if last == "-":
        target.append(_plain(patch["value"]))
    else:
        target[last] = _plain(patch["value"])


def _plain(value):
    return json.loads(json.dumps(value))


def _merge(target, configuration, field):
    """Server-side apply: maps are merged, the known lists by their key; all other lists would be refused as atomic."""
    for name, value in configuration.items():
        if isinstance(value, dict) and name != "fieldRef":
            _merge(target.setdefault(name, {}), value, name)
        elif isinstance(value, list):
            if name not in _KEYS:
                raise CelError(f"{field}.{name} is atomic: an ApplyConfiguration may not set it")
            for item in value:
                _merge_item(target.setdefault(name, []), item, name)
        elif name == "fieldRef":
            raise CelError("fieldRef is atomic: an ApplyConfiguration may not set it")
        else:
            target[name] = value


def _merge_item(items, item, name):
    key = _KEYS[name]
    for present in items:
        if present[key] == item[key]:
            return _merge(present, item, name)
    items.append({})
    return _merge(items[-1], item, name)
