// The network between the hosts, as /api/network tells it: groups of hosts as frames, and the links that are slower than their like.
import {clean, element, plural, rate, setText, svg} from "./text.js";

const CELL = 104, HEIGHT = 24, GAP = 6, PAD = 10, HEAD = 22, MOST = 256;
const SOURCES = {told: "as they were told", measured: "as measured", unknown: "not measured yet"};

export function microseconds(seconds) {
  return seconds === null ? "–" : `${Math.round(1e6 * seconds)} µs`;
}

// [{name, hosts}]: the groups of the finest level, in the order of the hosts.
export function groupsOf(network) {
  const groups = [];
  for (const host of network.hosts) {
    const name = host.groups.map((group) => group + 1).join(".");
    if (groups.at(-1)?.name !== name) groups.push({name, hosts: []});
    groups.at(-1).hosts.push(host);
  }
  return groups;
}

function facts(network) {
  const groups = groupsOf(network).length;
  const source = SOURCES[network.source] ?? network.source;
  const across = network.kinds.at(0), within = network.kinds.at(-1);
  const parts = [network.levels === 0
    ? `${plural(network.hosts.length, "host", "hosts")}, no groups that are nearer to each other (${source})`
    : `${plural(network.hosts.length, "host", "hosts")} in ${plural(groups, "group", "groups")} (${source})`];
  if (network.pairs > 0 && network.levels > 0) {
    parts.push(`round trip in a group ${microseconds(within.latency_s)}, between groups ${microseconds(across.latency_s)}`);
  } else if (network.pairs > 0) {
    parts.push(`round trip ${microseconds(across.latency_s)}`);
  }
  return parts.join("; ");
}

function hostBox(host, x, y, slow) {
  const name = clean(host.hostname).split(".")[0] || clean(host.address);
  const shown = name.length > 14 ? `${name.slice(0, 6)}…${name.slice(-7)}` : name;
  const title = [clean(host.hostname), clean(host.address), host.place ? clean(host.place) : "", ...host.members.map(clean)];
  return svg("g", {class: slow ? "machine troubled" : "machine", transform: `translate(${x} ${y})`},
    svg("title", {}, title.filter(Boolean).join(", ")),
    svg("rect", {width: CELL, height: HEIGHT, rx: 3}),
    svg("text", {x: 7, y: 16, class: slow ? "trouble" : "facts"}, slow ? `▲ ${shown}` : shown));
}

// A frame for each group, as many in a row as there is room for.
function drawGroups(picture, network) {
  const width = Math.max(300, Math.round(picture.parentElement.clientWidth));
  const slow = new Set(network.slow.flatMap((link) => [link.from, link.to ?? link.from]));
  const columns = Math.max(1, Math.min(4, Math.floor((width - 2 * PAD + GAP) / (CELL + GAP))));
  const parts = [];
  let x = 0, y = 0, rowHeight = 0, left = MOST;
  for (const group of groupsOf(network)) {
    const hosts = group.hosts.slice(0, Math.max(0, left));
    left -= group.hosts.length;
    if (hosts.length === 0) break;
    const across = Math.min(columns, hosts.length);
    const frameWidth = across * (CELL + GAP) - GAP + 2 * PAD;
    const frameHeight = HEAD + Math.ceil(hosts.length / across) * (HEIGHT + GAP) - GAP + PAD;
    if (x > 0 && x + frameWidth > width) {
      x = 0;
      y += rowHeight + PAD;
      rowHeight = 0;
    }
    parts.push(svg("rect", {class: "frame", x, y, width: frameWidth, height: frameHeight, rx: 5}),
      svg("text", {class: "facts", x: x + PAD, y: y + 15}, group.name ? `group ${group.name}` : "all hosts"),
      ...hosts.map((host, i) => hostBox(host, x + PAD + (i % across) * (CELL + GAP), y + HEAD + Math.floor(i / across) * (HEIGHT + GAP), slow.has(host.address))));
    x += frameWidth + PAD;
    rowHeight = Math.max(rowHeight, frameHeight);
  }
  let height = y + rowHeight;
  if (left < 0) {
    height += 20;
    parts.push(svg("text", {class: "facts", x: 0, y: height - 5}, `${-left} further hosts: addendctl network shows all`));
  }
  picture.setAttribute("viewBox", `0 0 ${width} ${height}`);
  picture.setAttribute("width", width);
  picture.setAttribute("height", height);
  picture.setAttribute("aria-label", `Groups of hosts: ${facts(network)}`);
  picture.replaceChildren(...parts);
}

function slowRow(names, link) {
  const cells = [names.get(link.from) ?? link.from, link.to === null ? "most hosts" : names.get(link.to) ?? link.to,
    microseconds(link.latency_s), microseconds(link.typical_latency_s), rate(link.bandwidth_bps), rate(link.typical_bandwidth_bps)];
  const classes = ["", "", "number", "number wide", "number", "number wide"];
  return element("tr", {}, ...cells.map((text, i) => (i === 0 ? element("th", {scope: "row"}, text) : element("td", {class: classes[i]}, text))));
}

export function showNetwork(network) {
  const section = document.getElementById("network");
  section.hidden = network.hosts.length < 2;
  if (section.hidden) return;
  setText(document.getElementById("network-facts"), facts(network));
  drawGroups(document.getElementById("network-picture"), network);
  const table = document.getElementById("slow-links");
  table.parentElement.hidden = network.slow.length === 0;
  const names = new Map(network.hosts.map((host) => [host.address, clean(host.hostname) || host.address]));
  table.tBodies[0].replaceChildren(...network.slow.map((link) => slowRow(names, link)));
}
