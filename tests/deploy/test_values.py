"""values.yaml, its schema and its documentation have the same values."""
import importlib.util
import json

import yaml

from tests.deploy.chart import CHART

_spec = importlib.util.spec_from_file_location("readme", CHART.parent / "readme.py")
readme = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(readme)

VALUES = yaml.safe_load((CHART / "values.yaml").read_text())
SCHEMA = json.loads((CHART / "values.schema.json").read_text())


def resolved(schema):
    return SCHEMA["definitions"][schema["$ref"].rsplit("/", 1)[1]] if "$ref" in schema else schema


def leaves_of_schema(schema, path=""):
    """Paths of the values that the schema knows: objects of which it lists the fields are no leaves."""
    schema = resolved(schema)
    if "properties" not in schema:
        return {path}
    return {leaf for name, part in schema["properties"].items() for leaf in leaves_of_schema(part, f"{path}.{name}".lstrip("."))}


def leaf_is_value(path):
    value = VALUES
    for key in path.split("."):
        if not isinstance(value, dict) or key not in value:
            return False
        value = value[key]
    return True


def test_the_schema_and_values_yaml_have_the_same_values():
    documented = {path for path, _, _ in readme.entries((CHART / "values.yaml").read_text())}
    # A parent chart's `condition`; and maps that stand as such in values.yaml.
    known = {path.removesuffix(".grpc").removesuffix(".http") for path in leaves_of_schema(SCHEMA)} - {"enabled"}
    issuer = {path for path in known if path.startswith("tls.certManager.issuerRef.")}  # a single map in values.yaml
    assert issuer == {f"tls.certManager.issuerRef.{key}" for key in VALUES["tls"]["certManager"]["issuerRef"]}
    assert known - issuer | {"tls.certManager.issuerRef"} == documented
    assert all(leaf_is_value(path) for path in known)


def test_every_object_of_ours_refuses_unknown_names():
    def check(schema, path):
        schema = resolved(schema)
        if "properties" in schema:
            assert schema.get("additionalProperties") is False or path == "global", path  # Helm gives `global` to subcharts as well
            for name, part in schema["properties"].items():
                check(part, f"{path}.{name}".lstrip("."))

    check(SCHEMA, "")


def test_the_readme_is_the_one_that_values_yaml_makes():
    assert (CHART / "README.md").read_text() == readme.readme(), "run deploy/helm/readme.py"


def test_a_value_without_a_comment_is_an_error():
    try:
        readme.entries("a:\n  # A comment.\n  b: 1\n  c: 2\n")
    except SystemExit as error:
        assert "c has no comment" in str(error)
    else:
        raise AssertionError("no error")
