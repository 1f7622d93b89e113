// ReadTopology() and ExportTopology(): from hwloc's tree of objects to the devices that compete for
// a link.
#include <hwloc.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <csignal>
#include <cstring>
#include <fstream>
#include <iterator>
#include <map>
#include <memory>
#include <type_traits>
#include <utility>

#include "absl/strings/str_format.h"
#include "lib/base/status_macros.h"
#include "lib/base/strings.h"
#include "lib/intranode/nvml.h"
#include "lib/intranode/topology.h"

namespace addend {
namespace {

constexpr char kNvlinkMatrix[] = "NVLinkBandwidth";  // hwloc's name for it
constexpr unsigned kNvidia = 0x10de;
constexpr unsigned kDisplayClass = 0x03;
constexpr size_t kMaxFileBytes = 64 << 20;  // a hundred times a large machine's file

struct Destroy {
  void operator()(hwloc_topology* tree) const { hwloc_topology_destroy(tree); }
};
using Tree = std::unique_ptr<hwloc_topology, Destroy>;

std::string BusId(const hwloc_obj_attr_u::hwloc_pcidev_attr_s& pci) {
  return absl::StrFormat("%04x:%02x:%02x.%x", pci.domain, pci.bus, pci.dev, pci.func);
}
std::string BusId(hwloc_obj_t device) { return BusId(device->attr->pcidev); }

// 0 if a file has an invalid speed.
double Bps(float gigabytes_per_second) {
  return gigabytes_per_second > 0 && std::isfinite(gigabytes_per_second)
             ? gigabytes_per_second * 8e9
             : 0;
}

// Compares the bytes: hwloc stores any number of a file in its enumerations, and C++ may not read a
// value outside of an enumeration.
template <typename Enum>
bool Is(const Enum& value, Enum expected) {
  return std::memcmp(&value, &expected, sizeof(Enum)) == 0;
}

bool IsGpu(hwloc_obj_t device) {
  return device->attr->pcidev.vendor_id == kNvidia &&
         device->attr->pcidev.class_id >> 8 == kDisplayClass;
}

// The PCI device that an object of the operating system belongs to; null for virtual objects.
hwloc_obj_t PciDeviceOf(hwloc_obj_t object) {
  while (object != nullptr && object->type != HWLOC_OBJ_PCI_DEVICE) object = object->parent;
  return object;
}

std::map<std::string, hwloc_obj_t> GpusByBusId(hwloc_topology_t tree) {
  std::map<std::string, hwloc_obj_t> gpus;
  for (hwloc_obj_t device = nullptr; (device = hwloc_get_next_pcidev(tree, device)) != nullptr;) {
    if (IsGpu(device)) gpus[BusId(device)] = device;
  }
  return gpus;
}

// Bandwidths from each GPU to every other GPU in MB/s, right up to the generation of the links:
// only zero or not zero matters. `place`: a GPU's index in the matrix, by its bus id.
std::vector<hwloc_uint64_t> NvlinkValues(const std::map<std::string, size_t>& place,
                                         const std::vector<NvlinkEnd>& ends) {
  constexpr hwloc_uint64_t kOneLink = 25'000;
  std::vector<hwloc_uint64_t> values(place.size() * place.size(), 0);
  const auto add = [&](const std::string& from, const std::string& to, hwloc_uint64_t links) {
    const auto row = place.find(from);
    const auto column = place.find(to);
    if (row == place.end() || column == place.end() || from == to) return;
    values[row->second * place.size() + column->second] += links * kOneLink;
  };
  for (const NvlinkEnd& end : ends) {
    for (const std::string& peer : end.peers) add(end.bus_id, peer, 1);
    for (const NvlinkEnd& other : ends) {
      add(end.bus_id, other.bus_id, std::min(end.to_switches, other.to_switches));
    }
  }
  return values;
}

// Adds the matrix that hwloc itself adds if it is built with NVML.
absl::Status AddNvlinkMatrix(hwloc_topology_t tree) {
  ADDEND_ASSIGN_OR_RETURN(const std::vector<NvlinkEnd> ends, ReadNvlinks());
  std::map<std::string, size_t> place;
  std::vector<hwloc_obj_t> objects;
  for (const auto& [bus_id, object] : GpusByBusId(tree)) {
    place[bus_id] = objects.size();
    objects.push_back(object);
  }
  std::vector<hwloc_uint64_t> values = NvlinkValues(place, ends);
  auto handle = hwloc_distances_add_create(
      tree, kNvlinkMatrix, HWLOC_DISTANCES_KIND_FROM_OS | HWLOC_DISTANCES_KIND_MEANS_BANDWIDTH, 0);
  if (handle == nullptr ||
      hwloc_distances_add_values(tree, handle, static_cast<unsigned>(objects.size()),
                                 objects.data(), values.data(), 0) != 0 ||
      hwloc_distances_add_commit(tree, handle, 0) != 0) {
    return absl::InternalError("hwloc does not take what NVML tells of NVLink");
  }
  return absl::OkStatus();
}

bool HasNvlinkMatrix(hwloc_topology_t tree) {
  unsigned count = 0;
  return hwloc_distances_get_by_name(tree, kNvlinkMatrix, &count, nullptr, 0) == 0 && count > 0;
}

absl::StatusOr<Tree> NewTree() {
  hwloc_topology_t raw = nullptr;
  if (hwloc_topology_init(&raw) != 0) return absl::InternalError("hwloc does not start");
  Tree tree(raw);
  hwloc_topology_set_io_types_filter(raw, HWLOC_TYPE_FILTER_KEEP_IMPORTANT);
  // NVSwitches are not important to hwloc.
  hwloc_topology_set_type_filter(raw, HWLOC_OBJ_PCI_DEVICE, HWLOC_TYPE_FILTER_KEEP_ALL);
  return tree;
}

// Null if hwloc cannot parse it.
Tree LoadXml(const std::string& xml) {
  absl::StatusOr<Tree> tree = NewTree();
  // The size includes the 0 at the end.
  if (!tree.ok() ||
      hwloc_topology_set_xmlbuffer(tree->get(), xml.c_str(), static_cast<int>(xml.size() + 1)) !=
          0 ||
      hwloc_topology_load(tree->get()) != 0) {
    return nullptr;
  }
  return *std::move(tree);
}

// hwloc trusts a file: a malformed file can crash it, or keep it busy for ever. So a separate
// process reads the file first, which takes a few milliseconds.
absl::StatusOr<bool> SurvivesLoading(const std::string& xml) {
  constexpr rlimit kSeconds{.rlim_cur = 10, .rlim_max = 10};
  const pid_t child = ::fork();
  if (child == 0) {
    for (const int fatal : {SIGSEGV, SIGBUS, SIGABRT, SIGFPE, SIGILL}) {
      std::signal(fatal, SIG_DFL);
    }
    ::prctl(PR_SET_DUMPABLE, 0);  // a crash here is expected, and leaves no core dump
    ::setrlimit(RLIMIT_CPU, &kSeconds);
    ::close(STDERR_FILENO);
    ::_exit(LoadXml(xml) == nullptr ? 1 : 0);
  }
  if (child < 0) {
    return absl::ResourceExhaustedError(absl::StrFormat(
        "no process can be started to read a topology file: %s", std::strerror(errno)));
  }
  int status = 1;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  return status == 0;
}

absl::StatusOr<Tree> LoadFile(const std::string& file) {
  std::ifstream stream(file, std::ios::binary);
  if (!stream) {
    return absl::InvalidArgumentError(
        absl::StrFormat("'%s' cannot be read: %s", file, std::strerror(errno)));
  }
  const std::string xml{std::istreambuf_iterator<char>(stream), {}};
  Tree tree;
  if (xml.size() <= kMaxFileBytes) {
    ADDEND_ASSIGN_OR_RETURN(const bool safe, SurvivesLoading(xml));
    if (safe) tree = LoadXml(xml);
  }
  if (tree == nullptr) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "'%s' is not a topology: expected XML as `addendctl topology --export` or `lstopo` of "
        "hwloc 2 writes it",
        file));
  }
  return tree;
}

// `note`: why NVLink is unknown; empty if it is known.
absl::StatusOr<Tree> LoadThisMachine(std::string* note) {
  ADDEND_ASSIGN_OR_RETURN(Tree tree, NewTree());
  // Excludes optional plugins. sysfs has the necessary data; `pci` leaks memory and cannot read
  // link speeds without privileges, `opencl` would start the GPUs' drivers.
  for (const char* plugin : {"pci", "opencl", "gl"}) {
    hwloc_topology_set_components(tree.get(), HWLOC_TOPOLOGY_COMPONENTS_FLAG_BLACKLIST, plugin);
  }
  if (hwloc_topology_load(tree.get()) != 0) {
    return absl::InternalError(
        absl::StrFormat("hwloc cannot read this machine's topology: %s", std::strerror(errno)));
  }
  if (GpusByBusId(tree.get()).size() < 2 || HasNvlinkMatrix(tree.get())) return tree;
  const absl::Status added = AddNvlinkMatrix(tree.get());
  if (!added.ok()) {
    *note = absl::StrFormat("NVLink is not known, and counts as not there: %s", Message(added));
  }
  return tree;
}

// Converts hwloc's tree to a Topology.
class Reader {
 public:
  explicit Reader(hwloc_topology_t tree) : tree_(tree), gpus_(GpusByBusId(tree)) {
    for (hwloc_obj_t device = nullptr; (device = hwloc_get_next_osdev(tree, device)) != nullptr;) {
      const auto& type = device->attr->osdev.type;
      if (!Is(type, HWLOC_OBJ_OSDEV_NETWORK) && !Is(type, HWLOC_OBJ_OSDEV_OPENFABRICS)) continue;
      if (device->name == nullptr) continue;  // possible in a file
      if (hwloc_obj_t pci = PciDeviceOf(device)) {
        nics_[BusId(pci)] = pci;
        names_[BusId(pci)].emplace_back(device->name);
      }
    }
  }

  Topology Read() {
    std::map<std::string, PcieSwitch> switches;
    for (const auto* devices : {&gpus_, &nics_}) {
      for (const auto& [bus_id, device] : *devices) {
        PcieSwitch s = SwitchOf(device);
        switches.emplace(s.bus_id, s);
      }
    }
    for (auto& [bus_id, s] : switches) {
      places_[bus_id] = static_cast<uint32_t>(topology_.switches.size());
      topology_.switches.push_back(std::move(s));
    }
    for (const auto& [bus_id, device] : gpus_) {
      const char* name = hwloc_obj_get_info_by_name(device, "PCIDevice");
      Add(device, {.bus_id = bus_id, .name = name != nullptr ? name : ""}, &topology_.gpus,
          &PcieSwitch::gpus);
    }
    for (const auto& [bus_id, device] : nics_) {
      Add(device, {.bus_id = bus_id, .names = names_[bus_id]}, &topology_.nics, &PcieSwitch::nics);
    }
    ReadNvlinkMatrix();
    return std::move(topology_);
  }

 private:
  template <typename Device>
  void Add(hwloc_obj_t object, std::type_identity_t<Device> device, std::vector<Device>* all,
           std::vector<uint32_t> PcieSwitch::*members) {
    device.link_bps = Bps(object->attr->pcidev.linkspeed);
    device.pcie_switch = places_[SwitchOf(object).bus_id];
    (topology_.switches[device.pcie_switch].*members).push_back(static_cast<uint32_t>(all->size()));
    all->push_back(std::move(device));
  }

  PcieSwitch SwitchOf(hwloc_obj_t device) const {
    hwloc_obj_t top = device;
    for (hwloc_obj_t above = device->parent; above != nullptr && above->type == HWLOC_OBJ_BRIDGE;
         above = above->parent) {
      if (Is(above->attr->bridge.upstream_type, HWLOC_OBJ_BRIDGE_PCI)) top = above;
    }
    // A bridge has the attributes of a PCI device upstream.
    const auto& pci = top == device ? device->attr->pcidev : top->attr->bridge.upstream.pci;
    PcieSwitch s;
    s.bus_id = BusId(pci);
    s.on_host_bridge = top == device;
    s.link_bps = Bps(pci.linkspeed);
    hwloc_const_nodeset_t nodes = hwloc_get_non_io_ancestor_obj(tree_, device)->nodeset;
    if (hwloc_bitmap_weight(nodes) == 1) {
      s.numa_node = static_cast<uint32_t>(hwloc_bitmap_first(nodes));
    }
    return s;
  }

  // The matrix has GPUs, named by their PCI devices or by driver objects below these, and
  // NVSwitches. GPUs with links to NVSwitches reach each other.
  void ReadNvlinkMatrix() {
    hwloc_distances_s* matrix = nullptr;
    unsigned count = 1;
    if (hwloc_distances_get_by_name(tree_, kNvlinkMatrix, &count, &matrix, 0) != 0 || count == 0) {
      return;
    }
    const size_t n = matrix->nbobjs;
    std::vector<std::optional<uint32_t>> gpu(n);
    for (size_t i = 0; i < n; ++i) gpu[i] = GpuOf(matrix->objs[i]);
    const auto linked = [&](size_t i, size_t j) { return matrix->values[i * n + j] > 0; };
    std::vector<bool> switched(n, false);
    for (size_t i = 0; i < n; ++i) {
      for (size_t j = 0; j < n; ++j) switched[i] = switched[i] || (!gpu[j] && linked(i, j));
    }
    for (size_t i = 0; i < n; ++i) {
      for (size_t j = 0; j < n; ++j) {
        const bool joined = linked(i, j) || (switched[i] && switched[j]);
        if (joined && gpu[i] && gpu[j] && *gpu[i] < *gpu[j]) {
          topology_.nvlinks.emplace_back(*gpu[i], *gpu[j]);
        }
      }
    }
    hwloc_distances_release(tree_, matrix);
  }

  std::optional<uint32_t> GpuOf(hwloc_obj_t object) const {
    const hwloc_obj_t device = PciDeviceOf(object);
    if (device == nullptr || !IsGpu(device)) return std::nullopt;
    const auto found = FindGpu(topology_, BusId(device));
    return found.ok() ? std::optional(*found) : std::nullopt;
  }

  hwloc_topology_t tree_;
  std::map<std::string, hwloc_obj_t> gpus_;
  std::map<std::string, hwloc_obj_t> nics_;
  std::map<std::string, std::vector<std::string>> names_;  // of NICs
  std::map<std::string, uint32_t> places_;                 // of switches
  Topology topology_;
};

}  // namespace

absl::StatusOr<Topology> ReadTopology(const std::string& file) {
  std::string note;
  ADDEND_ASSIGN_OR_RETURN(const Tree tree, file.empty() ? LoadThisMachine(&note) : LoadFile(file));
  Topology topology = Reader(tree.get()).Read();
  if (!note.empty()) topology.notes.push_back(note);
  return topology;
}

absl::Status ExportTopology(const std::string& file) {
  std::string note;
  ADDEND_ASSIGN_OR_RETURN(const Tree tree, LoadThisMachine(&note));
  if (hwloc_topology_export_xml(tree.get(), file.c_str(), 0) != 0) {
    return absl::InvalidArgumentError(
        absl::StrFormat("'%s' cannot be written: %s", file, std::strerror(errno)));
  }
  return absl::OkStatus();
}

}  // namespace addend
