"""The kernel's counts of processes' TCP connections."""
import re
import subprocess


def connections(pids):
    """A dictionary per end of an established TCP connection: pid, local and peer port, bytes sent and received."""
    text = subprocess.run(["ss", "-tinHOp", "state", "established"], capture_output=True, text=True, check=True).stdout
    found = []
    for line in text.splitlines():
        process = re.search(r"pid=(\d+)", line)
        if process is None or int(process[1]) not in pids:
            continue
        local, peer = re.findall(r":(\d+)\s", line)[:2]
        count = {key: int(value[1]) if (value := re.search(rf"\b{key}:(\d+)", line)) else 0
                 for key in ("bytes_acked", "bytes_received")}
        found.append({"pid": int(process[1]), "local": int(local), "peer": int(peer),
                      "sent": count["bytes_acked"], "received": count["bytes_received"]})
    return found


def traffic(pid, ports):
    """(bytes sent, bytes received) by a process on connections with an end on one of `ports`."""
    ends = [c for c in connections({pid}) if c["local"] in ports or c["peer"] in ports]
    return sum(c["sent"] for c in ends), sum(c["received"] for c in ends)
