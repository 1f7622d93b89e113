// Follows the PEM files and hands gRPC validated copies of them. One thread reads the files every
// second; ReadTlsFiles() judges them; gRPC's own file watcher then picks the copies up.

#include "lib/rpc/tls.h"

#include <fcntl.h>
#include <grpcpp/security/tls_credentials_options.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <optional>
#include <string_view>
#include <thread>
#include <utility>

#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "lib/base/fd.h"
#include "lib/base/log.h"
#include "lib/base/mutex.h"
#include "lib/base/status_macros.h"
#include "lib/base/strings.h"
#include "lib/rpc/grpc_process.h"
#include "lib/rpc/tls_files.h"

namespace addend {
namespace {

using internal::TlsMaterial;

constexpr std::chrono::seconds kBetweenReads(1);
constexpr unsigned kGrpcBetweenReadsS = 1;

std::atomic<const TlsIdentity*> process_identity{nullptr};

// An anonymous file whose content is replaced in a single step. gRPC can follow files, but it drops
// its certificates when it reads a half-written file. So it reads copies, which hold only valid
// contents.
//
// The descriptor stays open for as long as the process: gRPC ends a channel in the background, and
// its thread may read the path after the channel and this object are gone. It would find another
// file that has the number by then; at a folder gRPC aborts.
class Copy {
 public:
  Copy() = default;
  ~Copy() { fd_.Release(); }
  Copy(const Copy&) = delete;
  Copy& operator=(const Copy&) = delete;

  absl::Status Replace(std::string_view text) {
    UniqueFd fresh(::memfd_create("addend-tls", MFD_CLOEXEC));
    if (!fresh.valid() || !WriteAll(fresh.get(), text)) return Failed();
    if (!fd_.valid()) {
      fd_ = std::move(fresh);
    } else if (::dup3(fresh.get(), fd_.get(), O_CLOEXEC) < 0) {
      return Failed();
    }
    return absl::OkStatus();
  }
  std::string path() const { return absl::StrFormat("/proc/self/fd/%d", fd_.get()); }

 private:
  static bool WriteAll(int fd, std::string_view text) {
    while (!text.empty()) {
      const ssize_t written = ::write(fd, text.data(), text.size());
      if (written <= 0) return false;
      text.remove_prefix(static_cast<size_t>(written));
    }
    return true;
  }
  static absl::Status Failed() {
    return absl::ResourceExhaustedError(
        absl::StrFormat("no memory for a copy of the certificates: %s", std::strerror(errno)));
  }

  UniqueFd fd_;
};

std::string Describe(const TlsFiles& files, const TlsMaterial& material) {
  return absl::StrFormat(
      "the certificate %s (%s; valid to %s)", files.cert, material.names,
      absl::FormatTime("%Y-%m-%d %H:%M UTC", material.valid_to, absl::UTCTimeZone()));
}

}  // namespace

struct TlsIdentity::Impl {
  explicit Impl(const TlsFiles& files) : files(files) {}

  absl::Status Use(TlsMaterial fresh) {
    // A reader between the two steps sees a new certificate with old authorities; it reads both
    // again a second later. Key and certificate are in a single file.
    ADDEND_RETURN_IF_ERROR(identity.Replace(fresh.key + "\n" + fresh.cert));
    ADDEND_RETURN_IF_ERROR(authorities.Replace(fresh.ca));
    material = std::move(fresh);
    return absl::OkStatus();
  }
  void MakeCredentials();
  void Follow();
  void ReadAgain();
  void TellOfItsEnd();

  const TlsFiles files;
  Copy identity;
  Copy authorities;
  std::shared_ptr<grpc::ChannelCredentials> channel;
  std::shared_ptr<grpc::ServerCredentials> server;

  // Belongs to the thread that follows the files, once it runs.
  TlsMaterial material;
  std::string told;  // the last logged error
  bool told_of_its_end = false;

  Mutex mu;
  CondVar changed;
  bool stop ABSL_GUARDED_BY(mu) = false;
  std::thread thread;
};

void TlsIdentity::Impl::MakeCredentials() {
  namespace tls = grpc::experimental;
  internal::BeginGrpc();  // the certificate provider needs it
  const auto provider = std::make_shared<tls::FileWatcherCertificateProvider>(
      identity.path(), identity.path(), authorities.path(), kGrpcBetweenReadsS);
  tls::TlsServerCredentialsOptions of_server(provider);
  of_server.watch_root_certs();
  of_server.watch_identity_key_cert_pairs();
  of_server.set_cert_request_type(GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
  server = tls::TlsServerCredentials(of_server);
  tls::TlsChannelCredentialsOptions of_channel;
  of_channel.set_certificate_provider(provider);
  of_channel.watch_root_certs();
  of_channel.watch_identity_key_cert_pairs();
  of_channel.set_certificate_verifier(std::make_shared<tls::HostNameCertificateVerifier>());
  channel = tls::TlsCredentials(of_channel);
}

void TlsIdentity::Impl::Follow() {
  while (true) {
    {
      const auto next = std::chrono::steady_clock::now() + kBetweenReads;
      MutexLock lock(&mu);
      while (!stop && changed.WaitUntil(&mu, next)) {
      }
      if (stop) return;
    }
    ReadAgain();
    TellOfItsEnd();
  }
}

void TlsIdentity::Impl::ReadAgain() {
  auto fresh = internal::ReadTlsFiles(files);
  absl::Status status = fresh.status();
  if (status.ok() && *fresh == material) return told.clear();
  if (status.ok()) status = Use(*std::move(fresh));
  if (status.ok()) {
    told.clear();
    told_of_its_end = false;
    spdlog::info("TLS: {} is in use", Describe(files, material));
  } else if (const std::string why = Message(status); why != told) {
    told = why;
    spdlog::warn("TLS: {}; the former certificate stays in use", why);
  }
}

void TlsIdentity::Impl::TellOfItsEnd() {
  if (told_of_its_end || absl::Now() < material.valid_to) return;
  told_of_its_end = true;
  spdlog::error("TLS: {} has expired: others refuse it until the file is replaced",
                Describe(files, material));
}

TlsIdentity::TlsIdentity(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

absl::StatusOr<std::unique_ptr<TlsIdentity>> TlsIdentity::Load(const TlsFiles& files) {
  ADDEND_ASSIGN_OR_RETURN(TlsMaterial material, internal::ReadTlsFiles(files));
  auto impl = std::make_unique<Impl>(files);
  ADDEND_RETURN_IF_ERROR(impl->Use(std::move(material)));
  impl->MakeCredentials();
  impl->TellOfItsEnd();
  spdlog::info("{} is mutual TLS with {}", files.purpose, Describe(files, impl->material));
  impl->thread = std::thread([raw = impl.get()] { raw->Follow(); });
  return std::unique_ptr<TlsIdentity>(new TlsIdentity(std::move(impl)));
}

TlsIdentity::~TlsIdentity() {
  if (process_identity == this) process_identity = nullptr;
  {
    MutexLock lock(&impl_->mu);
    impl_->stop = true;
    impl_->changed.NotifyAll();
  }
  impl_->thread.join();
}

const TlsFiles& TlsIdentity::files() const { return impl_->files; }
const std::shared_ptr<grpc::ChannelCredentials>& TlsIdentity::channel_credentials() const {
  return impl_->channel;
}
const std::shared_ptr<grpc::ServerCredentials>& TlsIdentity::server_credentials() const {
  return impl_->server;
}

void SetProcessIdentity(const TlsIdentity* identity) { process_identity = identity; }
const TlsIdentity* ProcessIdentity() { return process_identity; }

}  // namespace addend
