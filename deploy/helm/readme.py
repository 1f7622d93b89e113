#!/usr/bin/python3
"""Writes deploy/helm/addend/README.md: its table is made of values.yaml, in which the comment above a value documents it.

    deploy/helm/readme.py           writes it
    deploy/helm/readme.py --check   says whether it is up to date (exit status 1 if not)
"""
import json
import pathlib
import re
import sys

import yaml

CHART = pathlib.Path(__file__).resolve().parent / "addend"
_KEY = re.compile(r"( *)([A-Za-z]\w*):(?: |$)(.*)")


def entries(text):
    """(dotted path, default, documentation) of every value; a mapping without documentation of its own is only a prefix."""
    rows, comment, prefix = [], [], []  # prefix: [(indentation, key)] of the open mappings
    for number, line in enumerate(text.splitlines(), 1):
        stripped = line.strip()
        if not stripped:
            comment = []
        elif stripped.startswith("#"):
            comment.append(stripped[1:].strip())
        else:
            match = _KEY.fullmatch(line)
            if not match:
                raise SystemExit(f"values.yaml:{number}: readme.py reads one `key: value` per line, lists and leaf maps in flow style")
            prefix = [(indent, key) for indent, key in prefix if indent < len(match[1])] + [(len(match[1]), match[2])]
            if match[3]:
                if not comment:
                    raise SystemExit(f"values.yaml:{number}: {match[2]} has no comment above it")
                rows.append((".".join(key for _, key in prefix), yaml.safe_load(match[3]), " ".join(comment)))
            comment = []
    return rows


def table(rows):
    lines = ["| value | default | meaning |", "|---|---|---|"]
    for path, default, meaning in rows:
        lines.append(f"| `{path}` | `{json.dumps(default)}` | {meaning.replace('|', chr(92) + '|')} |")
    return "\n".join(lines)


def readme(values=None, address="deploy/helm/addend", top="../../..", variants="ci/"):
    """The text for given values, and for a given place of the chart: the package of a release has its own (deploy/release)."""
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    rows = entries(values or (CHART / "values.yaml").read_text())
    return f"""# The Addend chart

{chart["description"]}: a scheduler, summation servers on borrowed CPU machines, and the sidecar for training pods.
[docs/kubernetes.md]({top}/docs/kubernetes.md) says how to use it. `deploy/helm/readme.py` writes this file from `values.yaml`.

```
helm install addend {address} --namespace addend --create-namespace --set summation.bandwidth=25Gbps
helm test addend --namespace addend --logs
```

Kubernetes {chart["kubeVersion"].removesuffix("-0")}. [ci]({variants}) has values for each way to install it.

## Values

{table(rows)}
"""


def main():
    path = CHART / "README.md"
    if sys.argv[1:] == ["--check"]:
        if path.read_text() != readme():
            sys.exit(f"{path} is out of date: run deploy/helm/readme.py")
    elif sys.argv[1:]:
        sys.exit(__doc__)
    else:
        path.write_text(readme())


if __name__ == "__main__":
    main()
