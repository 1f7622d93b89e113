// A rank of Gloo's all-reduces, for bench/peers:
//   addend-peer-gloo ring|ring-chunked|halving-doubling RANK SIZE FOLDER SIZES ITERATIONS WARM-UP
// FOLDER is empty and shared by the ranks.
#include <gloo/allreduce.h>
#include <gloo/allreduce_halving_doubling.h>
#include <gloo/allreduce_ring_chunked.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/transport/tcp/device.h>

#include <memory>
#include <utility>

#include "bench/peer_rounds.h"

namespace {

using Context = std::shared_ptr<gloo::Context>;

void Sum(void* out, const void* a, const void* b, size_t elements) {
  gloo::sum<float>(static_cast<float*>(out), static_cast<const float*>(a),
                   static_cast<const float*>(b), elements);
}

double OfAll(const Context& context, double value, bool largest) {
  using Function = void (*)(void*, const void*, const void*, size_t);
  const Function max = &gloo::max<double>, sum = &gloo::sum<double>;
  gloo::AllreduceOptions options(context);
  options.setOutput(&value, 1);
  options.setReduceFunction(largest ? max : sum);
  gloo::allreduce(options);
  return value;
}

// An algorithm object is bound to a tensor's buffer, so it is made once per tensor.
template <class Algorithm>
void RunCached(const Context& context, float* values, size_t elements) {
  static std::unique_ptr<Algorithm> algorithm;
  static std::pair<float*, size_t> made_for;
  if (algorithm == nullptr || made_for != std::pair(values, elements)) {
    made_for = {values, elements};
    algorithm = std::make_unique<Algorithm>(context, std::vector<float*>{values},
                                            static_cast<int>(elements));
  }
  algorithm->run();
}

void Ring(const Context& context, float* values, size_t elements) {
  gloo::AllreduceOptions options(context);
  options.setAlgorithm(gloo::AllreduceOptions::Algorithm::RING);
  options.setOutput(values, elements);
  options.setReduceFunction(&Sum);
  gloo::allreduce(options);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 8) return std::fprintf(stderr, "addend-peer-gloo: wrong arguments\n"), 64;
  const int rank = std::atoi(argv[2]), size = std::atoi(argv[3]);
  const std::string algorithm = argv[1];
  gloo::transport::tcp::attr address;
  address.hostname = "127.0.0.1";
  gloo::rendezvous::FileStore store(argv[4]);
  const auto context = std::make_shared<gloo::rendezvous::Context>(rank, size);
  auto device = gloo::transport::tcp::CreateDevice(address);
  context->connectFullMesh(store, device);
  addend::RunPeer({rank, size,
                   [&](float* values, size_t elements) {
                     if (algorithm == "ring") {
                       Ring(context, values, elements);
                     } else if (algorithm == "ring-chunked") {
                       RunCached<gloo::AllreduceRingChunked<float>>(context, values, elements);
                     } else {
                       RunCached<gloo::AllreduceHalvingDoubling<float>>(context, values, elements);
                     }
                   },
                   [&](double value) { return OfAll(context, value, true); },
                   [&](double value) { return OfAll(context, value, false); }},
                  argv[5], std::atoi(argv[6]), std::atoi(argv[7]));
  return 0;
}
