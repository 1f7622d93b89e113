// Runs before the first input: log lines are formatted and discarded.
#include <openssl/crypto.h>
#include <spdlog/sinks/null_sink.h>
#include <spdlog/spdlog.h>

#include <csignal>
#include <memory>

// Vectors that packaged libraries fill are not annotated for AddressSanitizer; and gRPC frees some
// of its globals only at the end of its own shutdown thread.
extern "C" const char* __asan_default_options() {
  return "detect_container_overflow=0:malloc_context_size=8:quarantine_size_mb=16";
}
extern "C" const char* __ubsan_default_options() { return "print_stacktrace=1"; }
extern "C" const char* __ubsan_default_suppressions() { return "vptr:libgrpc"; }
extern "C" const char* __lsan_default_suppressions() { return "leak:libgrpc"; }

extern "C" int LLVMFuzzerInitialize(int*, char***) {
  auto logger =
      std::make_shared<spdlog::logger>("", std::make_shared<spdlog::sinks::null_sink_mt>());
  logger->set_level(spdlog::level::debug);
  spdlog::set_default_logger(std::move(logger));
  std::signal(SIGPIPE, SIG_IGN);
  // Before the targets' objects, so that exit() ends their threads first: OpenSSL never frees the
  // state of a thread that outlives it.
  OPENSSL_init_crypto(OPENSSL_INIT_LOAD_CONFIG, nullptr);
  return 0;
}
