"""Writes tests/data/topology/*.xml: machines as hwloc 2 records them, reduced to their GPUs and NICs and at most one core per NUMA node.
Run it after a change: python3 -m tests.support.topology_fixtures
"""
import itertools
import pathlib
from xml.sax.saxutils import quoteattr

FOLDER = pathlib.Path(__file__).resolve().parents[1] / "data" / "topology"
GEN3_X16, GEN4_X16 = "15.753846", "31.507692"  # GB/s, as hwloc writes them
GPU, NETWORK, OPENFABRICS = 1, 2, 3            # hwloc's types of OS devices

NAMES = {"1db1": "GV100GL [Tesla V100 SXM2 16GB]", "1db4": "GV100GL [Tesla V100 PCIe 16GB]", "20b0": "GA100 [A100 SXM4 40GB]"}


class Element:
    def __init__(self, tag, *children, **attributes):
        self.tag, self.children, self.attributes = tag, list(children), attributes

    def lines(self, indent=""):
        start = indent + "<" + self.tag + "".join(f" {key}={quoteattr(str(value))}" for key, value in self.attributes.items())
        if not self.children:
            return [start + "/>"]
        if isinstance(self.children[0], str):
            return [f"{start}>{self.children[0]}</{self.tag}>"]
        return [start + ">", *itertools.chain(*(child.lines(indent + "  ") for child in self.children)), f"{indent}</{self.tag}>"]


class Machine:
    """Makes a machine's objects and numbers them as hwloc does (gp_index)."""

    def __init__(self, speed=GEN3_X16):
        self.speed, self.numbers, self.matrix = speed, itertools.count(1), []

    def object(self, kind, *children, **attributes):
        return Element("object", *children, type=kind, gp_index=next(self.numbers), **attributes)

    def os_device(self, name, kind, **attributes):
        return self.object("OSDev", name=name, osdev_type=kind, **attributes)

    def device(self, bus_id, ids, *children):
        return self.object("PCIDev", *children, pci_busid=bus_id, pci_type=f"{ids} [0000:0000] 00", pci_link_speed=self.speed)

    def gpu(self, bus_id, device="1db4", nvml=None):
        name = Element("info", name="PCIDevice", value=NAMES[device])
        return self.device(bus_id, f"0302 [10de:{device}]", name, *([nvml] if nvml else []))

    def nic(self, bus_id, name, rdma=None):
        interfaces = [self.os_device(name, NETWORK)] + ([self.os_device(rdma, OPENFABRICS)] if rdma else [])
        return self.device(bus_id, "0200 [15b3:1017]", *interfaces)

    def bridge(self, bus_id, *below):
        domain_bus = int(bus_id[5:7], 16)
        return self.object("Bridge", *below, bridge_type="1-1", depth=1, bridge_pci=f"{bus_id[:4]}:[{domain_bus + 1:02x}-{domain_bus + 9:02x}]",
                           pci_busid=bus_id, pci_type="0604 [8086:2030] [0000:0000] 00", pci_link_speed=self.speed)

    def host_bridge(self, first_bus, *below):
        return self.object("Bridge", *below, bridge_type="0-1", depth=0, bridge_pci=f"0000:[{first_bus:02x}-{first_bus + 31:02x}]")

    def nvlink(self, objects, value):
        """Records the matrix of `value(i, j)` for the objects at i and j."""
        names = [f"{o.attributes['type']}:{o.attributes['gp_index']}" for o in objects]
        places = range(len(objects))
        values = [str(value(i, j)) for i, j in itertools.product(places, places)]
        mixed = len({o.attributes["type"] for o in objects}) > 1
        if not mixed:
            names = [name.split(":")[1] for name in names]
        indexes, numbers = " ".join(names) + " ", " ".join(values) + " "
        self.matrix.append(Element(
            "distances2hetero" if mixed else "distances2", Element("indexes", indexes, length=len(indexes)),
            Element("u64values", numbers, length=len(numbers)), nbobjs=len(objects), kind=25 if mixed else 9,
            name="NVLinkBandwidth", **({} if mixed else {"type": objects[0].attributes["type"], "indexing": "gp"})))

    def write(self, name, *nodes):
        """`nodes`: the host bridges of every NUMA node."""
        packages = []
        for i, bridges in enumerate(nodes):
            sets = self.sets(1 << i)
            memory = self.object("NUMANode", os_index=i, local_memory=1 << 36, **sets)
            unit = self.object("PU", os_index=i, **sets)
            packages.append(self.object("Package", memory, unit, *bridges, os_index=i, **sets))
        # A network device that is not below a PCI device is no NIC: the loopback, a bridge of containers.
        virtual = [self.os_device("lo", NETWORK), self.os_device("docker0", NETWORK)]
        machine = self.object("Machine", *packages, *virtual, os_index=0, **self.sets((1 << len(nodes)) - 1, ("", "complete_", "allowed_")))
        lines = ['<?xml version="1.0" encoding="UTF-8"?>', '<!DOCTYPE topology SYSTEM "hwloc2.dtd">',
                 *Element("topology", machine, *self.matrix, version="2.0").lines()]
        return name, "\n".join(lines) + "\n"

    @staticmethod
    def sets(mask, prefixes=("", "complete_")):
        return {f"{prefix}{kind}": f"0x{mask:08x}" for kind in ("cpuset", "nodeset") for prefix in prefixes}


def paper_pcie():
    """Fig. 6: two CPUs, each with a switch of four GPUs, no NVLink, the NIC on separate lanes."""
    m = Machine()
    first = m.bridge("0000:16:00.0", *(m.bridge(f"0000:17:0{i}.0", m.gpu(f"0000:{0x18 + i:02x}:00.0")) for i in range(4)))
    nic = m.bridge("0000:3a:00.0", m.nic("0000:3b:00.0", "eth0", "mlx5_0"))
    second = m.bridge("0000:85:00.0", *(m.bridge(f"0000:86:0{i}.0", m.gpu(f"0000:{0x87 + i:02x}:00.0")) for i in range(4)))
    return m.write("paper-pcie", [m.host_bridge(0x16, first), m.host_bridge(0x3a, nic)], [m.host_bridge(0x85, second)])


def paper_nvlink():
    """Fig. 8: four switches with two GPUs each, all joined by NVLink, the NIC below the first switch."""
    m = Machine()
    gpus, switches = [], []
    for bus in (0x16, 0x3a, 0x85, 0xae):
        pair = [m.gpu(f"0000:{bus + 2 + i:02x}:00.0", "1db1") for i in range(2)]
        gpus += pair
        nic = [m.bridge(f"0000:{bus + 1:02x}:08.0", m.nic(f"0000:{bus + 4:02x}:00.0", "eth0", "mlx5_0"))] if not switches else []
        below = [m.bridge(f"0000:{bus + 1:02x}:0{i}.0", gpu) for i, gpu in enumerate(pair)]
        switches.append(m.host_bridge(bus, m.bridge(f"0000:{bus:02x}:00.0", *below, *nic)))
    # The hybrid cube mesh of eight V100: two squares with their diagonals, and the edges between the squares.
    m.nvlink(gpus, lambda i, j: 25000 if i != j and (i // 4 == j // 4 or i % 4 == j % 4) else 0)
    return m.write("paper-nvlink", switches[:2], switches[2:])


def dgx():
    """Eight A100 with all links to NVSwitches; four switches with two GPUs and two NICs each; as hwloc with NVML records them."""
    m = Machine(GEN4_X16)
    ends, bridges = [], []
    for bus in (0x00, 0x40, 0x80, 0xc0):
        below = []
        for i in range(2):
            nvml = m.os_device(f"nvml{len(ends)}", GPU, subtype="NVML")
            below.append(m.bridge(f"0000:{bus + 2:02x}:0{i}.0", m.gpu(f"0000:{bus + 3 + i:02x}:00.0", "20b0", nvml)))
            below.append(m.bridge(f"0000:{bus + 2:02x}:1{i}.0", m.nic(f"0000:{bus + 9 + i:02x}:00.0", f"ib{len(ends)}", f"mlx5_{len(ends)}")))
            ends.append(nvml)
        bridges.append(m.host_bridge(bus, m.bridge(f"0000:{bus + 1:02x}:01.0", *below)))
    switches = [m.device(f"0000:{0xe2 + i:02x}:00.0", "0680 [10de:1af1]") for i in range(2)]
    bridges.append(m.host_bridge(0xe0, m.bridge("0000:e0:03.0", *switches)))
    n = len(ends)
    m.nvlink(ends + switches, lambda i, j: 150000 if (i < n) != (j < n) else 0)
    return m.write("dgx", bridges[:2], bridges[2:])


def vm():
    """A virtual machine that shows eight GPUs and its NIC on the root bus."""
    m = Machine("0.000000")
    nic = m.device("0000:00:05.0", "0200 [1af4:1000]", m.os_device("ens5", NETWORK))
    return m.write("vm", [m.host_bridge(0x00, nic, *(m.gpu(f"0000:00:{0x17 + i:02x}.0") for i in range(8)))])


def one_gpu():
    m = Machine()
    bridges = [m.bridge("0000:00:01.0", m.gpu("0000:01:00.0")), m.bridge("0000:00:1c.0", m.nic("0000:05:00.0", "eno1"))]
    return m.write("one-gpu", [m.host_bridge(0x00, *bridges)])


def shared_nic():
    """No NVLink, two switches with two GPUs each, and the NIC below the first switch."""
    m = Machine()
    nic = m.bridge("0000:17:08.0", m.nic("0000:1a:00.0", "eth0"))
    first = m.bridge("0000:16:00.0", *(m.bridge(f"0000:17:0{i}.0", m.gpu(f"0000:{0x18 + i:02x}:00.0")) for i in range(2)), nic)
    second = m.bridge("0000:3a:00.0", *(m.bridge(f"0000:3b:0{i}.0", m.gpu(f"0000:{0x3c + i:02x}:00.0")) for i in range(2)))
    return m.write("pcie-shared-nic", [m.host_bridge(0x16, first), m.host_bridge(0x3a, second)])


def no_gpu():
    m = Machine()
    return m.write("no-gpu", [m.host_bridge(0x00, m.bridge("0000:00:1c.0", m.nic("0000:05:00.0", "eno1")))])


def fixtures():
    """The texts of all machines by their names."""
    return dict(make() for make in (paper_pcie, paper_nvlink, dgx, vm, one_gpu, shared_nic, no_gpu))


if __name__ == "__main__":
    for name, text in fixtures().items():
        (FOLDER / f"{name}.xml").write_text(text)
