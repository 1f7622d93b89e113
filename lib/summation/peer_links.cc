// Connections to other summation servers.
#include "lib/summation/peer_links.h"

#include <algorithm>

#include "absl/strings/str_format.h"
#include "lib/auth/secret.h"
#include "lib/base/log.h"
#include "lib/base/strings.h"
#include "lib/transport/shm/factory.h"

namespace addend {
namespace {

constexpr absl::Duration kConnectTimeout = absl::Seconds(5);
constexpr absl::Duration kBetweenAttempts = absl::Milliseconds(100);
// The scheduler plans without the peer then. The nodes wait meanwhile.
constexpr absl::Duration kPatience = absl::Seconds(3);
// Of a token that this server makes for itself: a connection takes seconds.
constexpr absl::Duration kTokenLife = absl::Minutes(10);

}  // namespace

PeerLinks::PeerLinks(const JobState* job, Outgoing* outgoing, ServerEvents* events)
    : job_(job), outgoing_(outgoing), events_(events) {
  identity_.job = job->spec.id;
  identity_.generation = job->spec.generation;
  identity_.incarnation = job->server->incarnation;
}

PeerLinks::~PeerLinks() {
  CloseAll(absl::CancelledError("the job has ended"));
  for (auto& [key, entry] : links_) outgoing_->retired.push_back(std::move(entry.link));
  outgoing_->DropClosed();
}

ServerLink* PeerLinks::LinkTo(ServerId server, uint32_t shard) {
  const Key key(server, shard);
  if (ServerLink* const known = Find(server, shard)) return known;
  const auto peer = job_->spec.peers.find(server);
  if (peer == job_->spec.peers.end()) return nullptr;
  Entry& entry = links_[key];
  entry.down_since = outgoing_->now();
  entry.link = std::make_unique<ServerLink>(&identity_, events_, outgoing_->convoy, server,
                                            peer->second.name, shard, outgoing_->now);
  Connect(key);
  Limit();
  return entry.link.get();
}

ServerLink* PeerLinks::Find(ServerId server, uint32_t shard) const {
  const auto known = links_.find({server, shard});
  return known == links_.end() ? nullptr : known->second.link.get();
}

void PeerLinks::LimitInFlight(size_t bytes) {
  in_flight_bytes_ = bytes;
  Limit();
}

void PeerLinks::Limit() {
  const double part = 1.0 / static_cast<double>(std::max<size_t>(1, links_.size()));
  for (auto& [key, entry] : links_) {
    entry.link->LimitInFlight(PartInFlight(in_flight_bytes_, part));
  }
}

void PeerLinks::Encrypt() {
  identity_.encrypt = true;
  for (auto& [key, entry] : links_) {
    entry.link->Reset(absl::UnavailableError("the link is made anew, encrypted"));
  }
}

void PeerLinks::Connect(const Key& key) {
  const auto peer = job_->spec.peers.find(key.first);
  if (peer == job_->spec.peers.end()) return;
  // The key of the job makes the tokens of all of its nodes, and of this.
  identity_.node = RelayId(ServerId(job_->server->id.load(std::memory_order_relaxed)));
  identity_.token.expires_unix_s = absl::ToUnixSeconds(outgoing_->cluster_now() + kTokenLife);
  identity_.token.secret = auth::TokenSecret(auth::BytesOf(job_->spec.key), identity_.claim());
  ServerLink* const link = links_.at(key).link.get();
  link->SetVersion(peer->second.frame_version);
  const Shortcut here{.transport = outgoing_->shm,
                      .address = {.host = SharedMemoryName(peer->second.incarnation, key.second)}};
  link->Connect(outgoing_->tcp, {.host = peer->second.host, .port = peer->second.port}, "",
                kConnectTimeout, here);
}

void PeerLinks::OnOpen(ServerLink* link, Incarnation server) {
  Entry& entry = links_.at({link->server(), link->shard()});
  const auto peer = job_->spec.peers.find(link->server());
  if (peer != job_->spec.peers.end() && peer->second.incarnation != server) {
    return TellIfDown({link->server(), link->shard()}, &entry,
                      absl::StrFormat("%s has been started anew", link->where()));
  }
  entry.down_since = absl::InfiniteFuture();
  entry.told = false;
}

void PeerLinks::OnLost(ServerLink* link, const absl::Status& why) {
  const Key key(link->server(), link->shard());
  Entry& entry = links_.at(key);
  const absl::Time now = outgoing_->now();
  entry.down_since = std::min(entry.down_since, now);
  spdlog::debug("lost the link to {}: {}", link->where(), Message(why));
  if (now - entry.down_since >= kPatience) TellIfDown(key, &entry, Message(why));
  outgoing_->run_after(kBetweenAttempts, [this, key, alive = std::weak_ptr<bool>(alive_)] {
    if (!alive.expired()) Retry(key);
  });
}

void PeerLinks::Retry(const Key& key) {
  const auto entry = links_.find(key);
  if (entry == links_.end() || entry->second.link->state() != ServerLink::State::kLost) return;
  Connect(key);
}

void PeerLinks::TellIfDown(const Key& key, Entry* entry, const std::string& why) {
  if (entry->told) return;
  entry->told = true;
  spdlog::warn("{}; the scheduler decides what becomes of job '{}'", why, job_->spec.name);
  outgoing_->on_trouble(job_->spec.id, key.first, why);
}

void PeerLinks::CloseAll(const absl::Status& why) {
  for (auto& [key, entry] : links_) entry.link->Close(why);
}

}  // namespace addend
