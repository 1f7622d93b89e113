// From one answer of /api/status after the other: what the page shows. No document in here.
import {clean, Rates} from "./text.js";

// Members that are gone stay in the picture for so long, crossed out.
const REMEMBERED_S = 60;
// A member sends a heartbeat every few seconds.
const SILENT_S = 4;

export class Model {
  constructor() {
    this.rates = new Rates();
    this.present = new Map();  // key -> member, of the last answer
    this.gone = new Map();     // key -> {...member, gone: {since, how}}
    this.epoch = null;
  }

  take(status) {
    const now = status.now_unix_s;
    // Of this start of the scheduler: another one counts its events anew.
    const began = now - status.uptime_s;
    if (this.epoch === null || Math.abs(began - this.epoch) > 1) this.epoch = began;
    const colocated = new Map(status.servers.filter((s) => s.colocated).map((s) => [`${s.job}/${s.node_rank}`, s]));
    const members = new Map();
    for (const job of status.jobs) {
      for (const node of job.nodes) {
        const member = this.node(now, job, node, colocated.get(`${job.name}/${node.node_rank}`));
        members.set(member.key, member);
      }
    }
    for (const server of status.servers.filter((s) => !s.colocated)) {
      const member = this.server(now, server);
      members.set(member.key, member);
    }
    this.noteGone(now, members, status);
    this.rates.forgetAllBut(new Set([...members.values()].flatMap((member) => member.counters)));
    this.present = members;
    return {
      status, now, members: [...members.values()], gone: [...this.gone.values()],
      events: status.events.map((event) => ({...event, key: `${this.epoch.toFixed(0)}.${event.number}`})),
    };
  }

  node(now, job, node, server) {
    const key = `node/${job.name}/${node.node_rank}/${node.incarnation}`;
    const counters = [key];
    const rate = this.rates.take(key, now - node.last_seen_s, node.traffic);
    if (server) {
      // The machine's link carries both.
      counters.push(`server/${server.server_id}/${server.incarnation}`);
      const more = this.rates.take(counters[1], now - server.last_seen_s, server.traffic);
      if (rate.sent !== null && more.sent !== null) {
        rate.sent += more.sent;
        rate.received += more.received;
      }
    }
    return {
      key, counters, kind: "node", job: job.name, number: node.node_rank, name: `node ${node.node_rank}`, host: clean(node.hostname),
      bandwidth: node.bandwidth_bps, rate, share: shareOf(job, server?.server_id), connected: node.connected,
      silent: node.last_seen_s > SILENT_S, seen: node.last_seen_s, activity: clean(node.activity), links: clean(node.links),
    };
  }

  server(now, server) {
    const key = `server/${server.server_id}/${server.incarnation}`;
    return {
      key, counters: [key], kind: "server", number: server.server_id, name: `server ${server.server_id}`, host: clean(server.hostname),
      bandwidth: server.bandwidth_bps, rate: this.rates.take(key, now - server.last_seen_s, server.traffic),
      shares: server.shares, connected: true, silent: server.last_seen_s > SILENT_S, seen: server.last_seen_s,
      activity: clean(server.activity), draining: server.draining, speed: server.speed,
      memory: server.memory_used_bytes, limit: server.memory_limit_bytes,
    };
  }

  noteGone(now, members, status) {
    const jobs = new Set(status.jobs.map((job) => job.name));
    for (const [key, member] of this.present) {
      // With its job, a node is no gap.
      if (members.has(key) || (member.kind === "node" && !jobs.has(member.job))) continue;
      this.gone.set(key, {...member, gone: {since: now, how: howGone(member, status.events)}});
    }
    const ranks = new Set([...members.values()].map((member) => `${member.kind}/${member.job}/${member.number}`));
    for (const [key, member] of this.gone) {
      const back = members.has(key) || ranks.has(`${member.kind}/${member.job}/${member.number}`);
      const jobEnded = member.kind === "node" && !jobs.has(member.job);
      if (back || jobEnded || now - member.gone.since > REMEMBERED_S || now < member.gone.since) this.gone.delete(key);
    }
  }
}

function shareOf(job, serverId) {
  if (serverId === undefined) return 0;
  const share = job.shares.find((one) => one.server_id === serverId);
  return share ? planned(share) : 0;
}

// What the plan gives it now; as long as nothing is assigned, what it is to get.
export function planned(share) {
  return share.assigned > 0 ? share.assigned : share.share;
}

// "lost" unless the scheduler says that it left.
function howGone(member, events) {
  for (const event of [...events].reverse()) {
    if ((event.kind === "left" || event.kind === "lost") && event.text.includes(`${member.name} (`) &&
        (member.kind === "server" || event.job === member.job)) {
      return event.kind;
    }
  }
  return "lost";
}

// The optimum of the last rounds, per round, as round_s is their time.
export function recentOptimum(job) {
  return job.efficiency === null || job.round_s === null ? null : job.efficiency * job.round_s;
}
