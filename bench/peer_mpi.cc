// A rank of MPI's all-reduces, for bench/peers: addend-peer-mpi SIZES ITERATIONS WARM-UP
#include <mpi.h>

#include "bench/peer_rounds.h"

namespace {

double OfAll(double value, MPI_Op op) {
  MPI_Allreduce(MPI_IN_PLACE, &value, 1, MPI_DOUBLE, op, MPI_COMM_WORLD);
  return value;
}

}  // namespace

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  if (argc != 4) return std::fprintf(stderr, "addend-peer-mpi: wrong arguments\n"), 64;
  addend::PeerRank peer;
  MPI_Comm_rank(MPI_COMM_WORLD, &peer.rank);
  MPI_Comm_size(MPI_COMM_WORLD, &peer.size);
  peer.all_reduce = [](float* values, size_t elements) {
    MPI_Allreduce(MPI_IN_PLACE, values, static_cast<int>(elements), MPI_FLOAT, MPI_SUM,
                  MPI_COMM_WORLD);
  };
  peer.largest = [](double value) { return OfAll(value, MPI_MAX); };
  peer.sum = [](double value) { return OfAll(value, MPI_SUM); };
  addend::RunPeer(peer, argv[1], std::atoi(argv[2]), std::atoi(argv[3]));
  MPI_Finalize();
  return 0;
}
