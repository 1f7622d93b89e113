// The status page: asks the scheduler every two seconds, and shows what it answers. While it does not answer, the page says
// since when, keeps the last picture, and goes on asking.
import {draw} from "./picture.js";
import {Model, planned, recentOptimum} from "./model.js";
import {showNetwork} from "./network.js";
import {bytes, clean, clock, duration, element, percent, plural, rate, setText} from "./text.js";

const INTERVAL_MS = 2000, SLOWEST_MS = 10000, TIMEOUT_MS = 5000, NETWORK_MS = 10000;
const ROWS = 200;  // of a table
// Of an event's kind: how much it matters, and its sign.
const KINDS = {
  lost: ["bad", "✕"], failed: ["bad", "✕"], nonfinite: ["bad", "✕"], audit_mismatch: ["bad", "✕"],
  refused: ["warn", "▲"], stall: ["warn", "▲"], rdma_fallback: ["warn", "▲"], incident: ["warn", "▲"],
  drained: ["calm", "↓"], left: ["calm", "−"], joined: ["calm", "+"], planned: ["calm", "→"], generation: ["calm", "●"],
};
const STATES = {ready: ["good", "●"], forming: ["warn", "◌"], failed: ["bad", "✕"]};

const byId = (id) => document.getElementById(id);
const model = new Model();
let view = null;       // what the last answer has made of the model
let answeredAt = null;  // by this machine's clock, ms
let awaySince = null;
let network = null;  // the last answer of /api/network
let networkAskedAt = -Infinity;  // ms

// ---- asking ----
async function ask() {
  const began = performance.now();
  try {
    const answer = await fetch("/api/status", {signal: AbortSignal.timeout(TIMEOUT_MS), cache: "no-store"});
    const status = await answer.json();
    if (status.standby) {
      standsBy(status);
    } else if (!answer.ok) {
      away(`it answers ${answer.status}`);
    } else {
      answeredAt = Date.now();
      awaySince = null;
      view = model.take(status);
      show();
      askNetwork();
    }
  } catch (error) {
    away(error.name === "TimeoutError" ? `no answer within ${TIMEOUT_MS / 1000} s` : "no connection");
  }
  // A large cluster's answer takes its time: the scheduler has other things to do.
  const took = awaySince === null ? performance.now() - began : 0;
  setTimeout(whenVisible, Math.min(Math.max(INTERVAL_MS, 4 * took), SLOWEST_MS));
}

// The network changes slowly. Without an answer the page keeps the former picture.
async function askNetwork() {
  if (performance.now() - networkAskedAt < NETWORK_MS) return;
  networkAskedAt = performance.now();
  try {
    const answer = await fetch("/api/network", {signal: AbortSignal.timeout(TIMEOUT_MS), cache: "no-store"});
    if (!answer.ok) return;
    network = await answer.json();
    showNetwork(network);
  } catch {
    // It is asked again; the status says whether the scheduler answers.
  }
}

// A page that nobody sees does not ask.
function whenVisible() {
  if (!document.hidden) return ask();
  document.addEventListener("visibilitychange", ask, {once: true});
}

function connection(state, text) {
  byId("connection").dataset.state = state;
  setText(byId("connection"), text);
  document.body.classList.toggle("stale", state !== "live");
}

function notice(text) {
  byId("notice").hidden = text === "";
  setText(byId("notice"), text);
}

function away(why) {
  awaySince ??= answeredAt ?? Date.now();
  const since = clock(awaySince / 1000);
  connection("away", `Not answering since ${since}`);
  notice((view ? `The scheduler has not answered since ${since} (${why}). What you see is of then. `
               : `The scheduler has not answered yet (${why}). `) +
         "Rounds that are running go on without it. This page keeps trying.");
  document.title = "▲ Addend: no answer";
}

function standsBy(status) {
  awaySince = null;
  connection("standby", "Standing by");
  notice(`This scheduler stands by: ${status.leader ? `${clean(status.leader)} leads` : "it is not known who leads"}. ` +
         "Its page shows the cluster; this one will, as soon as it leads.");
  document.title = "Addend: standing by";
}

// ---- showing ----
function show() {
  const {status} = view;
  connection("live", "Live");
  notice("");
  const failed = status.jobs.filter((job) => job.state === "failed").length;
  document.title = failed ? `✕ Addend: ${plural(failed, "job has", "jobs have")} failed` : `Addend: ${plural(status.jobs.length, "job", "jobs")}`;
  showSummary(status);
  showJobs(status);
  showNodes();
  showServers();
  showEvents();
  fitWindow();
}

// What depends on the width of the window, and on nothing that the scheduler says.
function fitWindow() {
  showPlan(view.status);
  if (network !== null) showNetwork(network);
  for (const scroller of document.querySelectorAll(".scroll")) makeReachable(scroller);
}

function showSummary(status) {
  const servers = status.servers.filter((server) => !server.colocated).length;
  const facts = [
    ["Jobs", `${status.jobs.length}`],
    ["GPU machines", `${view.members.filter((member) => member.kind === "node").length}`],
    ["CPU servers", `${servers} (${status.recommended_servers} recommended)`],
    ["Scheduler", `${clean(status.version)}, up ${duration(status.uptime_s)}`],
    ["Store", clean(status.store)],
  ];
  const list = byId("summary");
  if (list.children.length !== facts.length) {
    list.replaceChildren(...facts.map(([name]) => element("div", {}, element("dt", {}, name), element("dd"))));
  }
  facts.forEach(([, value], i) => setText(list.children[i].lastChild, value));
}

// Rows of {key, cells}; a cell is a text, or {text, sub, state, sign, bar, title}. The first one heads its row. Rows and cells stay
// the same elements as long as they mean the same, so that a selection survives.
function fillTable(id, rows) {
  const table = byId(id);
  table.parentElement.hidden = rows.length === 0;
  const body = table.tBodies[0];
  const columns = [...table.tHead.rows[0].cells];
  const left = rows.length - ROWS;
  if (left > 0) rows = [...rows.slice(0, ROWS), {key: "more", cells: [`${left} more: addendctl nodes shows all`, ...columns.slice(1).map(() => "")]}];
  const old = new Map([...body.rows].map((row) => [row.dataset.key, row]));
  rows.forEach(({key, cells, state}, i) => {
    const row = old.get(key) ?? element("tr", {"data-key": key});
    old.delete(key);
    row.className = state ?? "";
    cells.forEach((cell, c) => fillCell(row, c, columns[c], typeof cell === "string" ? {text: cell} : cell));
    if (body.rows[i] !== row) body.insertBefore(row, body.rows[i] ?? null);
  });
  for (const row of old.values()) row.remove();
}

function fillCell(row, c, column, {text, sub, state, sign, bar}) {
  let cell = row.cells[c];
  if (!cell) {
    cell = c === 0 ? element("th", {scope: "row"}) : element("td", {class: column.className});
    cell.append(element("span", {class: "text"}), element("span", {class: "sub"}));
    row.append(cell);
  }
  const [main, below] = cell.children;
  main.className = state ? `text ${state}` : "text";
  setText(main, sign ? `${sign} ${text}` : text);
  setText(below, sub ?? "");
  if (bar === undefined) return cell.querySelector(".bar")?.remove();
  if (!cell.querySelector(".bar")) cell.prepend(element("span", {class: "bar", "aria-hidden": "true"}, element("span")));
  cell.querySelector(".bar > span").style.width = `${Math.round(100 * bar)}%`;
}

function showJobs(status) {
  byId("no-jobs").hidden = status.jobs.length > 0;
  fillTable("jobs", status.jobs.map((job) => {
    const [state, sign] = STATES[job.state] ?? ["warn", "?"];
    const why = [clean(job.reason), job.first_nonfinite ? `✕ ${clean(job.first_nonfinite)}` : ""].filter(Boolean).join("; ");
    const optimum = recentOptimum(job);
    return {key: `${job.job_id}`, cells: [
      {text: clean(job.name), sub: `generation ${job.generation}, plan ${job.plan_version}`},
      {text: job.state, sub: why, state, sign},
      `${job.nodes.filter((node) => node.connected).length} of ${job.settings.num_nodes}`,
      {text: bytes(job.tensor_bytes), sub: plural(job.tensors, "tensor", "tensors")},
      duration(job.round_s),
      {text: duration(optimum ?? job.t_opt_s), sub: optimum === null && job.t_opt_s !== null ? "all tensors" : ""},
      job.efficiency === null ? "–" : {text: percent(job.efficiency), bar: job.efficiency},
    ]};
  }));
}

function chosenJob(status) {
  const select = byId("plan-job");
  const names = status.jobs.map((job) => job.name);
  const had = [...select.options].map((option) => option.value);
  if (names.join("\n") !== had.join("\n")) {
    const chosen = select.value;
    select.replaceChildren(...names.map((name) => element("option", {value: name}, clean(name))));
    if (names.includes(chosen)) select.value = chosen;
  }
  byId("plan-choice").hidden = names.length < 2;
  return status.jobs.find((job) => job.name === select.value) ?? status.jobs[0];
}

// Of payloads that take fewer bytes on the wire than raw payloads.
function encodedFacts(job) {
  const smaller = job.contribution_ratio < 1 || job.result_ratio < 1;
  if (!smaller || job.t_opt_encoded_s === null) return [];
  const ratios = `contributions take ${percent(job.contribution_ratio)}, results ${percent(job.result_ratio)} of their bytes`;
  const facts = [`${ratios}: ${duration(job.t_opt_encoded_s)} at best`];
  if (job.efficiency_encoded !== null) facts.push(`${percent(job.efficiency_encoded)} of that optimum`);
  return facts;
}

function showPlan(status) {
  byId("plan").hidden = status.jobs.length === 0;
  if (status.jobs.length === 0) return;
  const job = chosenJob(status);
  const facts = [];
  if (job.efficiency !== null) facts.push(`runs at ${percent(job.efficiency)} of the optimum`);
  if (job.t_opt_s !== null) facts.push(`all ${bytes(job.tensor_bytes)} once: ${duration(job.t_opt_s)} at best`);
  else if (job.nodes.length > 1) facts.push("optimum unknown: give agents and servers --bandwidth");
  facts.push(...encodedFacts(job));
  setText(byId("plan-facts"), facts.join("; "));
  draw(byId("picture"), view, job, status.recommended_servers);
}

function stateOf(member) {
  if (!member.connected) return {text: "not connected", state: "bad", sign: "✕", sub: member.activity};
  if (member.silent) return {text: `silent for ${duration(member.seen)}`, state: "warn", sign: "▲", sub: member.activity};
  if (member.draining) return {text: "draining", state: "warn", sign: "▲", sub: member.activity};
  const slow = member.speed < 1 ? `, counts with ${percent(member.speed)} of its bandwidth` : "";
  return {text: "connected", state: "good", sign: "●", sub: member.activity + slow};
}

// Those that need attention are never among the rows that are left out.
function members(kind) {
  const all = view.members.filter((member) => member.kind === kind);
  const troubled = (member) => (stateOf(member).state === "good" ? 1 : 0);
  return all.length > ROWS ? all.sort((a, b) => troubled(a) - troubled(b)) : all;
}

function trafficOf(member) {
  return [rate(member.rate.sent), rate(member.rate.received), member.bandwidth ? rate(member.bandwidth) : "–"];
}

// "3 tcp (no RDMA: ...)": the reason below the number.
function linksOf(node) {
  const [, count, why] = node.links.match(/^([^(]*)(?:\((.*)\))?$/) ?? [null, node.links, ""];
  return {text: count.trim() || "–", sub: why};
}

function showNodes() {
  const several = view.status.jobs.length > 1;
  byId("no-machines").hidden = view.members.length > 0;
  fillTable("nodes", members("node").map((node) => ({key: node.key, cells: [
    {text: several ? `${node.name} of ${clean(node.job)}` : node.name, sub: node.host}, stateOf(node), ...trafficOf(node),
    percent(node.share), linksOf(node)]})));
}

function showServers() {
  fillTable("servers", members("server").map((server) => ({key: server.key, cells: [
    {text: server.name, sub: server.host}, stateOf(server), ...trafficOf(server),
    server.shares.map((share) => percent(planned(share)) + (server.shares.length > 1 ? ` of ${clean(share.job)}` : "")).join(", ") || "–",
    server.limit ? `${bytes(server.memory)} of ${bytes(server.limit)}` : bytes(server.memory)]})));
}

function eventItem(event) {
  const [state, sign] = KINDS[event.kind] ?? ["calm", "•"];
  const when = new Date(1000 * event.unix_s);
  return element("li", {"data-key": event.key, class: state},
    element("time", {datetime: when.toISOString(), title: when.toLocaleString()}, clock(event.unix_s)),
    element("span", {class: "kind"}, `${sign} ${clean(event.kind).replace("_", " ")}`),
    element("span", {class: "what"}, clean(event.text)));
}

// The newest first. Only what is new is added, and only that is read out.
function showEvents() {
  const list = byId("events");
  const keys = new Set(view.events.map((event) => event.key));
  for (const item of [...list.children]) {
    if (!keys.has(item.dataset.key)) item.remove();
  }
  const there = new Set([...list.children].map((item) => item.dataset.key));
  for (const event of view.events) {
    if (!there.has(event.key)) list.prepend(eventItem(event));
  }
  byId("no-events").hidden = view.events.length > 0;
  list.hidden = view.events.length === 0;
  // From the second answer on: the first one's two hundred are not news.
  if (!list.hasAttribute("aria-live")) setTimeout(() => list.setAttribute("aria-live", "polite"), 500);
}

// What can be scrolled sideways can be reached with the keyboard.
function makeReachable(scroller) {
  const needed = scroller.scrollWidth > scroller.clientWidth + 1;
  if (needed === scroller.hasAttribute("tabindex")) return;
  const attributes = {tabindex: "0", role: "region", "aria-label": scroller.dataset.label};
  for (const [name, value] of Object.entries(attributes)) {
    if (needed) scroller.setAttribute(name, value);
    else scroller.removeAttribute(name);
  }
}

byId("plan-job").addEventListener("change", () => view && showPlan(view.status));
byId("problems").addEventListener("change", (change) => byId("events").classList.toggle("only-problems", change.target.checked));
window.addEventListener("resize", () => view && fitWindow());
ask();
