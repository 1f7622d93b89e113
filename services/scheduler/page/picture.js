// The plan of one job as a picture: GPU machines at the left, CPU servers at the right, and how much of the bytes goes where.
import {percent, plural, rate, svg} from "./text.js";
import {planned} from "./model.js";

const HEIGHT = 48, GAP = 10, TOP = 26, SPINE = 34, MOST = 12;
const WIDTH_OF_ALL = 30;  // of a line that carries all bytes of a node
const NARROW = 520;

const canvas = document.createElement("canvas").getContext("2d");

// Where there is no room for all of a text: a host without its domain, else without its middle, for hosts differ at their ends.
function fit(text, width, font) {
  canvas.font = font;
  if (canvas.measureText(text).width <= width) return text;
  // Of "cpu-7.rack3.example" the first part says enough.
  const label = text.split(".")[0];
  if (/[a-z]/i.test(label) && canvas.measureText(label).width <= width) return label;
  for (let kept = text.length - 1; kept > 1; --kept) {
    const head = Math.ceil(kept / 2);
    const shorter = `${text.slice(0, head)}…${text.slice(text.length - (kept - head))}`;
    if (canvas.measureText(shorter).width <= width) return shorter;
  }
  return "…";
}

// What is drawn: {left, right} of machines with their share of the job; those beyond MOST as one that stands for them.
export function contents(view, job) {
  const shares = new Map(job.shares.map((share) => [share.server_id, planned(share)]));
  const left = [...view.members, ...view.gone].filter((member) => member.kind === "node" && member.job === job.name);
  const right = [...view.members, ...view.gone].filter((member) => member.kind === "server")
    .map((member) => ({...member, share: member.gone ? 0 : shares.get(member.number) ?? 0}));
  return {left: together(left, "nodes"), right: together(right, "servers")};
}

function together(machines, word) {
  machines.sort((a, b) => a.number - b.number);
  if (machines.length <= MOST) return machines;
  // What needs attention is drawn, whatever its number.
  const troubled = machines.filter((one) => one.gone || one.silent || !one.connected);
  const drawn = new Set([...troubled, ...machines].slice(0, MOST - 1));
  const rest = machines.filter((one) => !drawn.has(one));
  // Null if it is not known of anybody.
  const sum = (of) => rest.reduce((total, one) => (of(one) === null ? total : total + of(one)), rest.every((one) => of(one) === null) ? null : 0);
  return [...machines.filter((one) => drawn.has(one)), {
    key: "rest", name: `${rest.length} further ${word}`, host: "", share: sum((one) => one.share), bandwidth: sum((one) => one.bandwidth),
    rate: {sent: sum((one) => one.rate.sent), received: sum((one) => one.rate.received)}, connected: true,
  }];
}

// The part of its bandwidth that is in use, in the busier direction; null: not known.
function use(machine) {
  if (!machine.bandwidth || machine.rate.sent === null) return null;
  return Math.min(1, Math.max(machine.rate.sent, machine.rate.received) / machine.bandwidth);
}

function fate(machine, now) {
  if (machine.gone) return `${machine.gone.how} ${Math.max(0, Math.round(now - machine.gone.since))} s ago`;
  if (!machine.connected) return "not connected";
  if (machine.silent) return `silent for ${Math.round(machine.seen)} s`;
  if (machine.draining) return "draining";
  return null;
}

function box(machine, x, y, width, now) {
  const trouble = fate(machine, now);
  const sums = machine.share > 0 ? `sums ${percent(machine.share)}` : "sums nothing";
  const busy = machine.rate.sent === null ? null : Math.max(machine.rate.sent, machine.rate.received);
  const long = busy === null ? sums : `${sums} · ${rate(busy)}`;
  canvas.font = "12px system-ui, sans-serif";
  const facts = canvas.measureText(long).width <= width - 18 ? long : sums;
  const classes = ["machine", machine.gone ? "gone" : "", trouble && !machine.gone ? "troubled" : ""].join(" ").trim();
  const inner = width - 18;
  const nameFont = "600 13px system-ui, sans-serif", font = "12px system-ui, sans-serif";
  canvas.font = nameFont;
  const nameWidth = canvas.measureText(machine.name).width;
  const host = machine.host && inner - nameWidth > 30 ? fit(machine.host, inner - nameWidth - 8, font) : "";
  const group = svg("g", {class: classes, transform: `translate(${x} ${y})`},
    svg("title", {}, [machine.name, machine.host, trouble, sums].filter(Boolean).join(", ")),
    svg("rect", {width, height: HEIGHT, rx: 4}),
    svg("text", {x: 9, y: 19, class: "name"}, machine.name, ...(host ? [svg("tspan", {dx: 7, class: "host"}, host)] : [])),
    svg("text", {x: 9, y: 36, class: trouble ? "trouble" : "facts"}, fit(trouble ? `${machine.gone ? "✕" : "▲"} ${trouble}` : facts, inner, font)));
  const part = use(machine);
  if (part !== null && !machine.gone) {
    group.append(svg("rect", {class: "track", x: 9, y: HEIGHT - 6, width: inner, height: 3}),
      svg("rect", {class: "use", x: 9, y: HEIGHT - 6, width: Math.max(part > 0 ? 1 : 0, inner * part).toFixed(1), height: 3}));
  }
  if (machine.gone) {
    group.append(svg("path", {class: "cross", d: `M0 0L${width} ${HEIGHT}M${width} 0L0 ${HEIGHT}`}));
  }
  return group;
}

// A line from every GPU machine to every server, as wide as the part of the bytes that goes there.
function links(left, right, at) {
  const group = svg("g", {class: "links"});
  for (const [i, node] of left.entries()) {
    for (const [k, server] of right.entries()) {
      const dead = node.gone || server.gone;
      if (!dead && server.share <= 0) continue;
      const [y1, y2] = [at.left(i) + HEIGHT / 2, at.right(k) + HEIGHT / 2];
      const middle = (at.x1 + at.x2) / 2;
      const line = svg("path", {class: dead ? "dead" : "link", d: `M${at.x1} ${y1}C${middle} ${y1} ${middle} ${y2} ${at.x2} ${y2}`});
      if (!dead) {
        line.setAttribute("stroke-width", Math.max(1, WIDTH_OF_ALL * server.share).toFixed(1));
        line.setAttribute("stroke-opacity", (0.3 + 0.4 * Math.min(1, 2 * server.share)).toFixed(2));
      }
      group.append(line);
    }
  }
  return group;
}

// What the GPU machines sum among themselves.
function spine(left, share, at) {
  if (left.length < 2 || share <= 0) return svg("g");
  const width = Math.min(SPINE - 8, Math.max(1.5, WIDTH_OF_ALL * share));
  const x = SPINE - 8 - width / 2;
  const ys = left.map((_, i) => at.left(i) + HEIGHT / 2);
  const group = svg("g", {class: "links"}, svg("path", {
    class: "link", d: `M${x} ${ys[0]}V${ys.at(-1)}`, "stroke-width": width.toFixed(1), "stroke-opacity": 0.6, "stroke-linecap": "round"}));
  for (const [i, node] of left.entries()) {
    group.append(svg("path", {
      class: node.gone ? "dead" : "link", d: `M${x} ${ys[i]}H${SPINE}`, "stroke-width": node.gone ? 1 : Math.max(1.5, width / 3).toFixed(1), "stroke-opacity": 0.6}));
  }
  return group;
}

export function draw(picture, view, job, recommended) {
  const width = Math.max(300, Math.round(picture.parentElement.clientWidth));
  const {left, right} = contents(view, job);
  const boxWidth = Math.min(230, Math.floor((width - SPINE) * 0.43));
  const rows = Math.max(left.length, right.length, 1);
  const height = TOP + rows * (HEIGHT + GAP);
  const column = (count) => (i) => TOP + (rows - count) * (HEIGHT + GAP) / 2 + i * (HEIGHT + GAP);
  const at = {left: column(left.length), right: column(right.length), x1: SPINE + boxWidth, x2: width - boxWidth - 1};
  const among = left.reduce((sum, node) => sum + (node.gone ? 0 : node.share), 0);
  const onCpu = right.reduce((sum, server) => sum + server.share, 0);
  const nothing = right.length === 0
    ? [svg("text", {class: "facts", x: width - 1, y: TOP + 20, "text-anchor": "end"}, "no CPU servers"),
       ...(recommended > 0 ? [svg("text", {class: "facts", x: width - 1, y: TOP + 38, "text-anchor": "end"}, `${recommended} would help`)] : [])]
    : [];
  picture.setAttribute("viewBox", `0 0 ${width} ${height}`);
  picture.setAttribute("width", width);
  picture.setAttribute("height", height);
  const troubled = [...left, ...right].filter((one) => fate(one, view.now)).map((one) => `${one.name} ${fate(one, view.now)}`);
  picture.setAttribute("aria-label",
    `Plan of job ${job.name}: ${plural(left.filter((one) => !one.gone).length, "GPU machine sums", "GPU machines sum")} ${percent(among)} among themselves, ` +
    `${plural(right.filter((one) => !one.gone).length, "CPU server sums", "CPU servers sum")} ${percent(onCpu)}` +
    (troubled.length ? `; ${troubled.join("; ")}.` : "."));
  picture.replaceChildren(
    svg("text", {class: "heading", x: SPINE, y: 14}, width < NARROW ? `GPU: ${percent(among)}` : `GPU machines sum ${percent(among)}`),
    ...(right.length ? [svg("text", {class: "heading", x: width - 1, y: 14, "text-anchor": "end"}, width < NARROW ? `CPU: ${percent(onCpu)}` : `CPU servers sum ${percent(onCpu)}`)] : []),
    spine(left, among, at), links(left, right, at),
    ...left.map((node, i) => box(node, SPINE, at.left(i), boxWidth, view.now)),
    ...right.map((server, i) => box(server, at.x2, at.right(i), boxWidth, view.now)), ...nothing);
}
