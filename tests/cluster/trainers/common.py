"""Common parts of the test trainers: parameters, gates, and the hand-over of results."""
import json
import os
import pathlib
import time

_FOLDER = pathlib.Path(os.environ["ADDEND_TEST_FOLDER"])
RANK = int(os.environ["RANK"])


def parameters():
    return json.loads((_FOLDER / "parameters.json").read_text())


def wait_for(path):
    while not path.exists():
        time.sleep(0.005)


def shared(name):
    """A path that all ranks and the test know."""
    return _FOLDER / name


def gate(name):
    """Reports that this rank has arrived, and waits until the test opens the gate."""
    shared(f"{name}.{RANK}").touch()
    wait_for(shared(f"{name}.open"))


def wants(name):
    """Returns whether the test has opened the gate, without waiting."""
    return (_FOLDER / f"{name}.open").exists()


def file(name):
    """A path for data that is larger than a result."""
    return _FOLDER / f"{name}.{RANK}"


def finish(result):
    temporary = _FOLDER / f"result.{RANK}.tmp"
    temporary.write_text(json.dumps(result))
    temporary.rename(_FOLDER / f"result.{RANK}.json")


def outcome(function):
    """The outcome of a call: {"seconds": ..., "error": class name or None, "code": ..., "text": ...}."""
    import addend
    start = time.monotonic()
    error, code, text = None, 0, ""
    try:
        function()
    except addend.Error as e:
        error, code, text = type(e).__name__, int(e.code), str(e)
    except Exception as e:  # a wrong type of error is a finding, not a crash
        error, text = type(e).__name__, str(e)
    return {"seconds": time.monotonic() - start, "error": error, "code": code, "text": text}
