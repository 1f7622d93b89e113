"""addendctl topology on the machines of tests/data/topology, and its errors."""
import json

import pytest

from tests.support import topology_fixtures
from tests.support.cluster import ROOT, run_binary

MACHINES = ROOT / "tests" / "data" / "topology"
GUIDE = (ROOT / "docs" / "gpu.md").read_text()


def topology(machine, *arguments):
    result = run_binary("addendctl", "topology", f"--topology={MACHINES / machine}.xml", *arguments)
    assert result.returncode == 0, result.stderr
    assert result.stderr == ""
    return result.stdout


def answer(machine, *arguments):
    return json.loads(topology(machine, "--json", *arguments))


def test_the_machines_are_those_that_the_generator_writes():
    written = {path.stem: path.read_text() for path in MACHINES.glob("*.xml")}
    assert written == topology_fixtures.fixtures()


@pytest.mark.parametrize("machine,strategy,s_n,s_g,groups,roots", [
    ("paper-pcie", "cpu-assisted", 0, 2, [[0, 1, 2, 3], [4, 5, 6, 7]], []),
    ("paper-nvlink", "reduce-broadcast", 1, 3, [list(range(8))], [2, 3, 4, 5, 6, 7]),
    ("dgx", "reduce-scatter", 4, 0, [list(range(8))], []),
    ("vm", "copy", 0, 8, [[rank] for rank in range(8)], []),
    ("pcie-shared-nic", "cpu-assisted", 1, 1, [[0, 1], [2, 3]], []),
    ("one-gpu", "copy", 0, 1, [[0]], []),
])
def test_every_machine_has_its_strategy(machine, strategy, s_n, s_g, groups, roots):
    found = answer(machine)
    assert [found[key] for key in ("strategy", "s_n", "s_g", "groups", "roots")] == [strategy, s_n, s_g, groups, roots]
    assert found["scatter"] == (strategy in ("cpu-assisted", "reduce-scatter"))
    assert found["nvlink_joins_all"] == (machine in ("paper-nvlink", "dgx"))
    assert found["switches_hidden"] == (machine == "vm")
    assert found["why"] and all(sentence.endswith(".") for sentence in found["why"])
    assert "costs" not in found
    text = topology(machine)
    assert f"Strategy: {strategy}\n" in text
    for gpu in found["gpus"]:
        assert gpu["bus_id"] in text


def test_devices_are_below_their_switches():
    found = answer("paper-nvlink")
    assert [s["gpus"] for s in found["switches"]] == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert [s["numa_node"] for s in found["switches"]] == [0, 0, 1, 1]
    assert [nic["names"] for nic in found["nics"]] == [["eth0", "mlx5_0"]]
    assert [s["nics"] for s in found["switches"]] == [[0], [], [], []]
    assert found["gpus"][0]["link_bps"] == pytest.approx(126e9, rel=0.01)
    assert answer("vm")["gpus"][0]["link_bps"] is None


def test_a_machine_without_gpus_gets_one_line():
    assert topology("no-gpu") == "There is no NVIDIA GPU: ranks sum in host memory, and there is no strategy to choose.\n"
    found = answer("no-gpu")
    assert found["strategy"] is None and found["gpus"] == [] and len(found["nics"]) == 1


def test_a_strategy_can_be_demanded():
    found = answer("vm", "--intranode=cpu-assisted")
    assert found["groups"] == [list(range(8))]  # of the only NUMA node
    assert found["why"][-1] == "cpu-assisted was demanded; the rule would choose copy."


def test_explain_has_the_cost_models_figures():
    costs = answer("paper-pcie", "--explain")["costs"]
    pcie = costs["pcie"]
    assert costs["bytes"] == 1_000_000_000 and pcie["switches"] == 2 and pcie["gpus_per_switch"] == 4
    seconds = 8e9 / pcie["switch_cpu_bps"]
    assert pcie["best_x"] == pytest.approx(1 / 5)
    assert [pcie[key] / seconds for key in ("best_s", "cpu_assisted_s", "copy_s")] == pytest.approx([1.6, 1.75, 4])
    assert pcie["ring_s"] == pytest.approx(1.75 * seconds * 105 / 80)
    assert [load["gpus"] for load in costs["loads"]["cpu-assisted"]] == pytest.approx([1, 0, 1])
    half = answer("paper-pcie", "--explain", "--bytes=500MB")["costs"]["pcie"]
    assert half["best_s"] == pytest.approx(pcie["best_s"] / 2)
    assert answer("dgx", "--explain")["costs"]["pcie"] is None


def test_costs_are_unknown_on_machines_with_hidden_switches():
    found = answer("vm", "--explain")
    assert found["costs"] == {"bytes": 1_000_000_000, "pcie": None, "loads": {}}
    assert found["notes"] == ["what strategies cost is not known where switches are hidden"]


@pytest.mark.parametrize("machine", ["paper-pcie", "paper-nvlink"])
def test_the_guide_has_what_the_command_prints(machine):
    command = f"addendctl topology --topology=tests/data/topology/{machine}.xml --explain\n"
    printed = GUIDE.split(command, 1)[1].split("```", 1)[0]
    assert printed == topology(machine, "--explain")


def test_this_machine_can_be_recorded(tmp_path):
    file = tmp_path / "here.xml"
    here = run_binary("addendctl", "topology", "--json", f"--export={file}")
    assert here.returncode == 0, here.stderr
    again = run_binary("addendctl", "topology", "--json", f"--topology={file}")
    assert {**json.loads(again.stdout), "notes": []} == {**json.loads(here.stdout), "notes": []}


@pytest.mark.parametrize("arguments,sentence", [
    (["--topology=/nowhere.xml"], "'/nowhere.xml' cannot be read: No such file or directory"),
    ([f"--topology={ROOT / 'README.md'}"], "is not a topology: expected XML as `addendctl topology --export` or `lstopo` of hwloc 2 writes it"),
    (["--intranode=ring"], "'ring' is not a strategy: use copy, cpu-assisted, reduce-broadcast or reduce-scatter"),
    (["--export=/nowhere/here.xml"], "'/nowhere/here.xml' cannot be written"),
    (["--export=here.xml", f"--topology={MACHINES / 'dgx.xml'}"], "give one of them"),
    (["dgx"], "'dgx' on the command line is not expected: addendctl topology takes no argument"),
], ids=["missing", "no XML", "strategy", "export", "both", "argument"])
def test_wrong_input_is_named(arguments, sentence):
    result = run_binary("addendctl", "topology", *arguments)
    assert result.returncode == 64 and result.stdout == ""
    assert result.stderr.startswith("addendctl: ") and sentence in result.stderr
    assert result.stderr.count("\n") == 1
