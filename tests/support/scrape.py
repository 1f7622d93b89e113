"""Reads a service's metrics from /metrics."""
import re
import subprocess
import sys
import urllib.request

_LINE = re.compile(r"^(\w+)(?:\{(.*)\})? (\S+)$")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


def text_of(process, prefix=()):
    """The metrics of a started service (tests/support/cluster.py); `prefix`: of a command that runs on its host."""
    url = f"http://127.0.0.1:{process.ports['http']}/metrics"
    if not prefix:
        return urllib.request.urlopen(url, timeout=10).read().decode()
    fetch = "import sys, urllib.request; sys.stdout.buffer.write(urllib.request.urlopen(sys.argv[1], timeout=10).read())"
    return subprocess.run([*prefix, sys.executable, "-c", fetch, url], capture_output=True, text=True, check=True, timeout=20).stdout


def scrape(process, prefix=()):
    """{(name, frozenset of (label, value)): value} of all its samples."""
    text = text_of(process, prefix)
    samples = {}
    for line in text.splitlines():
        if match := _LINE.match(line):
            samples[match[1], frozenset(_LABEL.findall(match[2] or ""))] = float(match[3])
    return samples


def total(processes, name, **labels):
    """The sum over processes of all samples of this name with these labels."""
    wanted = {(label, str(value)) for label, value in labels.items()}
    return sum(value for process in processes for (sample, of_sample), value in scrape(process).items()
               if sample == name and wanted <= of_sample)


def value(process, name, prefix=(), **labels):
    """The value of the only sample of this name with these labels."""
    wanted = {(label, str(of_label)) for label, of_label in labels.items()}
    found = [one for (sample, of_sample), one in scrape(process, prefix).items() if sample == name and wanted <= of_sample]
    assert len(found) == 1, f"{name} has {len(found)} samples with {labels}"
    return found[0]
