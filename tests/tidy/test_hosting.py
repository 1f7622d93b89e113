"""The files for the repository's host, editors and dev containers agree with the tree: commands, packages, formats and owners exist."""
import configparser
import json
import pathlib
import re
import shutil
import subprocess

import pytest
import yaml

ROOT = pathlib.Path(__file__).resolve().parents[2]
GITHUB = ROOT / ".github"
WORKFLOWS = sorted((GITHUB / "workflows").glob("*.yml"))
PINNED = re.compile(r"[\w-]+/[\w-]+@[0-9a-f]{40}")


def load(path):
    return yaml.safe_load(path.read_text())


def triggers(workflow):
    return workflow[True]  # YAML 1.1 reads the key "on" as a boolean


def jobs():
    """(workflow's name, its job) of all workflows."""
    return [(path.name, job) for path in WORKFLOWS for job in load(path)["jobs"].values()]


def commands():
    """The commands of all steps."""
    return [step["run"] for _, job in jobs() for step in job["steps"] if "run" in step]


# ---- workflows ----

def test_pull_requests_get_the_fast_tier_and_main_gets_everything():
    by_name = {path.name: load(path) for path in WORKFLOWS}
    assert set(triggers(by_name["pull-request.yml"])) == {"pull_request"}
    assert set(triggers(by_name["full.yml"])) >= {"push", "schedule"}
    assert triggers(by_name["full.yml"])["push"]["branches"] == ["main"]
    runs = {name: [step.get("run") for job in workflow["jobs"].values() for step in job["steps"]] for name, workflow in by_name.items()}
    assert "scripts/test" in runs["pull-request.yml"] and ".ci/run" in runs["full.yml"]


@pytest.mark.parametrize("path", [path for path in WORKFLOWS if path.name != "release.yml"], ids=lambda path: path.name)
def test_workflows_have_least_permissions_and_no_secret(path):
    text, workflow = path.read_text(), load(path)
    assert workflow["permissions"] == {"contents": "read"}
    assert all("permissions" not in job for job in workflow["jobs"].values())
    assert not re.search(r"\bsecrets\b|pull_request_target", text)


def test_only_a_tag_releases_with_a_single_secret_in_a_single_step_after_consent():
    path = GITHUB / "workflows/release.yml"
    text, workflow = path.read_text(), load(path)
    assert triggers(workflow) == {"push": {"tags": ["v*"]}} and workflow["permissions"] == {"contents": "read"}
    job, = workflow["jobs"].values()
    assert job["environment"] == "release" and job["permissions"] == {"contents": "write", "packages": "write"}
    assert re.findall(r"\bsecrets\.(\w+)", text) == ["RELEASE_KEY"] and text.count("secrets") == 1
    holders = [step for step in job["steps"] if "secrets" in str(step)]
    assert len(holders) == 1 and "scripts/release" in holders[0]["run"] and "uses" not in holders[0]
    assert "env" not in workflow and "secrets" not in str(job["env"])


def test_actions_are_pinned_by_commit_and_keep_no_credentials():
    steps = [step for _, job in jobs() for step in job["steps"] if "uses" in step]
    assert steps
    assert not [step["uses"] for step in steps if not PINNED.fullmatch(step["uses"])]
    checkouts = [step for step in steps if step["uses"].startswith("actions/checkout@")]
    assert checkouts and all(step["with"]["persist-credentials"] is False for step in checkouts)
    # The version stands behind the commit, for people and for tools that update it.
    assert not [line for path in WORKFLOWS for line in path.read_text().splitlines() if "uses:" in line and not re.search(r"# v\d+\.\d+\.\d+$", line)]


def test_jobs_run_on_debian_12_and_have_a_time_limit():
    for name, job in jobs():
        if "kind create cluster" in str(job["steps"]):
            continue  # its binaries run in images of Debian 12
        container = job["container"]
        assert (container if isinstance(container, str) else container["image"]) == "debian:12", name
        assert 0 < job["timeout-minutes"] <= 180, name


def test_no_command_has_an_expression_of_the_request():
    """Titles and branches are chosen by strangers: a shell must not read them as a command."""
    assert not [command for command in commands() if "${{" in command]


def test_commands_of_workflows_exist():
    programs = {word for command in commands() for word in re.findall(r"(?:^|[\s;&|(])(\.?[\w-]+/[\w./-]+)", command) if not word.startswith(("origin/", "build/"))}
    assert programs >= {"scripts/test", "scripts/lint", "scripts/check-commits", ".ci/run"}
    missing = [program for program in programs if not ((ROOT / program).is_file() and (ROOT / program).stat().st_mode & 0o100)]
    assert not missing, missing
    for program, option in re.findall(r"(scripts/[\w-]+) (--[\w-]+)", "\n".join(commands())):
        assert option in (ROOT / program).read_text(), f"{program} does not know {option}"


# ---- templates and owners ----

@pytest.mark.parametrize("path", sorted(path for path in (GITHUB / "ISSUE_TEMPLATE").glob("*.yml") if path.name != "config.yml"), ids=lambda path: path.name)
def test_issue_forms_are_valid(path):
    form = load(path)
    assert set(form) >= {"name", "description", "body"}
    fields = [field for field in form["body"] if field["type"] != "markdown"]
    identifiers = [field["id"] for field in fields]
    assert len(set(identifiers)) == len(identifiers)
    for field in form["body"]:
        assert field["type"] in ("markdown", "input", "textarea", "dropdown", "checkboxes")
        assert set(field) <= {"type", "id", "attributes", "validations"}
        assert field["attributes"]["value" if field["type"] == "markdown" else "label"]


def test_commands_that_forms_ask_for_exist():
    text = "\n".join(path.read_text() for path in GITHUB.rglob("*") if path.suffix in (".yml", ".md"))
    known = (ROOT / "tools/addendctl/main.cc").read_text() + "\n".join(path.name for path in (ROOT / "tools/addendctl").iterdir())
    asked = set(re.findall(r"`addendctl ([a-z]\w*)`", text))
    assert asked and not [name for name in asked if f"{name}_command.cc" not in known]
    assert not [name for name in re.findall(r"`(scripts/[\w-]+)", text) if not (ROOT / name).exists()]
    assert not [name for name in re.findall(r"`?\b([A-Z]+\.md)\b", text) if not (ROOT / name).exists()]


def test_paths_of_code_owners_exist():
    for line in (GITHUB / "CODEOWNERS").read_text().splitlines():
        if line and not line.startswith("#"):
            path, *owners = line.split()
            assert owners and all(owner.startswith("@") for owner in owners), line
            assert path == "*" or (ROOT / path.strip("/")).exists(), line


# ---- editors ----

def editor_sections():
    """{pattern of paths: settings} of .editorconfig."""
    parser = configparser.ConfigParser(delimiters="=")
    parser.read_string("[root]\n" + (ROOT / ".editorconfig").read_text())
    assert parser["root"]["root"] == "true"
    return {name: dict(parser[name]) for name in parser.sections() if name != "root"}


def matches(pattern, path):
    """Whether a pattern of .editorconfig covers a path below the root."""
    words = {"**": ".*", "*": "[^/]*", "{": "(?:", "}": ")", ",": "|"}
    expression = "".join(words.get(part, re.escape(part)) for part in re.split(r"(\*\*|[*{},])", pattern))
    return re.fullmatch(expression if "/" in pattern else "(?:.*/)?" + expression, path) is not None


def settings_for(path):
    found = {}
    for pattern, settings in editor_sections().items():
        if matches(pattern, path):
            found.update(settings)
    return found


@pytest.mark.skipif(not shutil.which("clang-format-14"), reason="clang-format-14 is not installed: only Debian 12 has it")
def test_editorconfig_agrees_with_the_formatter():
    dump = yaml.safe_load(subprocess.run(["clang-format-14", "--style=file", "--dump-config"], capture_output=True, text=True, check=True, cwd=ROOT).stdout)
    settings = settings_for("lib/base/clock.cc")
    assert (int(settings["indent_size"]), int(settings["max_line_length"])) == (dump["IndentWidth"], dump["ColumnLimit"])
    assert settings["indent_style"] == "space" and dump["UseTab"] == "Never"
    flake8 = configparser.ConfigParser()
    flake8.read(ROOT / "setup.cfg")
    assert settings_for("python/setup.py")["max_line_length"] == flake8["flake8"]["max-line-length"]


def faults_of(data, settings):
    """The settings that a file's bytes violate."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return ["charset"]
    lines = text.splitlines()
    faults = {
        "end_of_line": "\r" in text,
        "insert_final_newline": text != "" and not text.endswith("\n"),
        "trim_trailing_whitespace": any(line != line.rstrip() for line in lines),
        "indent_style": any(line.startswith("\t" if settings["indent_style"] == "space" else "  ") for line in lines),
    }
    return [name for name, fault in faults.items() if fault and settings[name] != "unset"]


def test_the_tree_agrees_with_editorconfig():
    folders = [".ci", ".devcontainer", ".github", "bench", "cmake", "deploy", "docs", "examples", "lib", "proto", "python", "scripts", "services", "spec", "tests", "tools"]
    paths = [path for folder in folders for path in (ROOT / folder).rglob("*") if path.is_file() and not {"__pycache__", "node_modules"} & set(path.parts)]
    paths += [path for path in ROOT.iterdir() if path.is_file() and path.name != ".git"]
    wrong = []
    for path in paths:
        relative = path.relative_to(ROOT).as_posix()
        settings = settings_for(relative)
        if settings["charset"] != "unset" and path.suffix not in (".png", ".pyc", ".gz"):
            wrong += [f"{relative}: {name}" for name in faults_of(path.read_bytes(), settings)]
    assert not wrong, "\n".join(wrong)


def test_faults_are_found():
    settings = settings_for("lib/base/clock.cc")
    assert not faults_of(b"int a;\n", settings)
    for data, fault in ((b"\xff\n", "charset"), (b"a\r\n", "end_of_line"), (b"a", "insert_final_newline"), (b"a \n", "trim_trailing_whitespace"), (b"\ta\n", "indent_style")):
        assert fault in faults_of(data, settings)
    assert settings_for("tests/fuzz/corpus/frames/x")["charset"] == "unset"


# ---- the dev container ----

def test_the_dev_container_is_made_from_the_list_of_packages():
    container = json.loads((ROOT / ".devcontainer/devcontainer.json").read_text())
    folder = ROOT / ".devcontainer"
    text = (folder / container["build"]["dockerfile"]).read_text()
    context = (folder / container["build"]["context"]).resolve()
    assert re.search(r"^FROM debian:12$", text, re.M)
    copied = [source for line in re.findall(r"^COPY (.*)", text, re.M) for source in line.split()[:-1]]
    assert "scripts/packages.txt" in copied and all((context / source).is_file() for source in copied)
    visible = (folder / "Dockerfile.dockerignore").read_text().splitlines()
    assert all(f"!{source}" in visible for source in copied)
    function, *groups = re.search(r"(require_packages)((?: \w+)+)'", text)[0].rstrip("'").split()
    assert f"\n{function}()" in (ROOT / "scripts/lib.sh").read_text()
    listed = {line.split()[0] for line in (ROOT / "scripts/packages.txt").read_text().splitlines() if line and not line.startswith("#")}
    assert set(groups) <= listed
    assert (ROOT / container["postCreateCommand"]).exists()


# ---- the list of packages ----

def packages_of(release, *groups):
    script = f"source scripts/lib.sh; RELEASE={release}; packages_of {' '.join(groups)}"
    return subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True, cwd=ROOT).stdout.split()


def test_each_release_of_debian_has_its_own_names_of_packages():
    words = [line.split() for line in (ROOT / "scripts/packages.txt").read_text().splitlines() if not line.startswith("#")]
    assert all(line[2:] in ([], ["bookworm"], ["trixie"]) for line in words)
    groups = sorted({line[0] for line in words})
    bookworm, trixie = packages_of("bookworm", *groups), packages_of("trixie", *groups)
    assert {"g++", "clang-14", "libabsl20220623"} <= set(bookworm) and "libabsl20240722" not in bookworm
    assert {"g++", "libabsl20240722"} <= set(trixie) and not {"clang-14", "libabsl20220623"} & set(trixie)
    libraries = [sum(release in line[2:] for line in words if line[0] == "image") for release in ("bookworm", "trixie")]
    assert libraries[0] == libraries[1], "a library has a package in each release"


# ---- subjects of commits ----

def check_subjects(folder, *subjects):
    """The result of scripts/check-commits for commits with these subjects."""
    def git(*words):
        subprocess.run(["git", "-c", "user.name=A", "-c", "user.email=a@example.org", *words], cwd=folder, check=True, capture_output=True)
    git("init", "-q", "-b", "main")
    for subject in ("the first", *subjects):
        git("commit", "-q", "--allow-empty", "-m", subject)
    command = f"git() {{ command git -C {folder} \"$@\"; }}; export -f git; {ROOT}/scripts/check-commits HEAD~{len(subjects)}..HEAD"
    return subprocess.run(["bash", "-c", command], capture_output=True, text=True)


GOOD = ("lib/rpc: reload certificates when their files change", "lib/client, python: add the type of a handle", "docs: process figures by address",
        "tests/tidy: need no compiler", "scheduler: re-read the store, as \"list: all\" does")
BAD = {
    "Add a thing": "area", "lib/rpc add a thing": "area", "Lib: add a thing": "area", "lib: Add a thing": "lower case", "lib: added a thing": "basic form",
    "lib: adds a thing": "basic form", "lib: adding a thing": "basic form", "lib: add a thing.": "full stop", "lib: add " + "a thing " * 12 + "here": "characters",
}


def test_good_subjects_pass(tmp_path):
    result = check_subjects(tmp_path, *GOOD)
    assert result.returncode == 0 and f"{len(GOOD)} commits" in result.stdout, result.stdout + result.stderr


def test_bad_subjects_are_refused_with_the_reason(tmp_path):
    result = check_subjects(tmp_path, *BAD)
    assert result.returncode == 1
    for subject, reason in BAD.items():
        line = next(line for line in result.stdout.splitlines() if f'"{subject}"' in line)
        assert reason in line.partition(f'"{subject}"')[2], line
    assert f"{len(BAD)} of {len(BAD)} subjects" in result.stderr


def test_a_range_that_does_not_exist_is_refused(tmp_path):
    result = subprocess.run([ROOT / "scripts/check-commits", "no-such-branch..HEAD"], capture_output=True, text=True, cwd=tmp_path)
    assert result.returncode == 64 and "not a range" in result.stderr
