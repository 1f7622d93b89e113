// Numbers and names for people, and the few ways in which the page touches the document.

// Host names, job names and reasons come from members: whatever they are, they are shown as one line of text in the
// direction of the page. Nothing is ever read as HTML.
const UNSEEN = /[\u0000-\u001f\u007f-\u009f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]/g;

export function clean(text) {
  return String(text ?? "").replace(UNSEEN, "\ufffd");
}

export function element(name, attributes = {}, ...children) {
  return fill(document.createElement(name), attributes, children);
}

export function svg(name, attributes = {}, ...children) {
  return fill(document.createElementNS("http://www.w3.org/2000/svg", name), attributes, children);
}

function fill(node, attributes, children) {
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  node.append(...children);
  return node;
}

// Leaves the node alone where nothing changes: a selection stays, and screen readers hear only news.
export function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

export function percent(fraction) {
  if (fraction === null || fraction === undefined || !isFinite(fraction)) return "–";
  const value = 100 * fraction;
  return `${value >= 9.95 || value === 0 ? value.toFixed(0) : value.toFixed(1)} %`;
}

function scaled(value, base, units) {
  let unit = 0;
  while (value >= 999.5 && unit < units.length - 1) {
    value /= base;
    ++unit;
  }
  const digits = value >= 99.5 || unit === 0 ? 0 : value >= 9.95 ? 1 : 2;
  return `${value.toFixed(digits)} ${units[unit]}`;
}

export function bytes(value) {
  return scaled(value, 1000, ["B", "KB", "MB", "GB", "TB"]);
}

// Bits per second, as bandwidths are given.
export function rate(bitsPerSecond) {
  if (bitsPerSecond === null || bitsPerSecond === undefined) return "–";
  return scaled(bitsPerSecond, 1000, ["bit/s", "Kbit/s", "Mbit/s", "Gbit/s", "Tbit/s"]);
}

export function duration(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  if (seconds < 0.9995) {
    const ms = 1000 * seconds;
    return ms >= 9.95 ? `${ms.toFixed(0)} ms` : `${ms.toFixed(1)} ms`;
  }
  if (seconds < 99.5) return `${seconds.toFixed(seconds < 9.95 ? 1 : 0)} s`;
  if (seconds < 5970) return `${Math.round(seconds / 60)} min`;
  return seconds < 172800 ? `${(seconds / 3600).toFixed(1)} h` : `${Math.round(seconds / 86400)} days`;
}

export function clock(unixSeconds) {
  return new Date(1000 * unixSeconds).toLocaleTimeString([], {hour: "2-digit", minute: "2-digit", second: "2-digit", hour12: false});
}

export function plural(count, one, many) {
  return `${count} ${count === 1 ? one : many}`;
}

// Rates of the members' counters, over about the last ten seconds. A member's counters are as old as its last heartbeat.
export class Rates {
  static WINDOW_S = 10;
  constructor() {
    this.samples = new Map();
  }

  // `key` names one start of one process. Returns {sent, received} in bits per second, or nulls until two samples are there.
  take(key, time, traffic) {
    const samples = this.samples.get(key) ?? [];
    this.samples.set(key, samples);
    const last = samples.at(-1);
    if (!last || time > last.time + 0.2) {
      samples.push({time, sent: traffic.network_bytes_sent, received: traffic.network_bytes_received});
    }
    while (samples.length > 2 && samples[1].time < time - Rates.WINDOW_S) samples.shift();
    const [first, now] = [samples[0], samples.at(-1)];
    const elapsed = now.time - first.time;
    if (elapsed <= 0) return {sent: null, received: null};
    return {sent: 8 * (now.sent - first.sent) / elapsed, received: 8 * (now.received - first.received) / elapsed};
  }

  // Of processes that are not there any more.
  forgetAllBut(keys) {
    for (const key of this.samples.keys()) {
      if (!keys.has(key)) this.samples.delete(key);
    }
  }
}
