// A small cluster's status, for the tests of those that show it.
#pragma once

#include "proto/addend/v1/scheduler.pb.h"

namespace addend {

// A CPU server and a colocated server that have summed 3:1 for a job of a single node.
inline v1::GetStatusResponse ExampleStatus() {
  v1::GetStatusResponse status;
  status.set_version("0.1.0");
  status.set_store("memory");
  auto* cpu = status.add_servers();
  cpu->set_server_id(1);
  cpu->set_incarnation(0xFFFFFFFFFFFFFFFF);
  cpu->set_hostname("cpu-0");
  cpu->mutable_traffic()->set_payload_bytes_summed(3000);
  cpu->set_memory_limit_bytes(8'000'000'000);
  auto* colocated = status.add_servers();
  colocated->set_server_id(2);
  colocated->set_colocated(true);
  colocated->set_job("train");
  colocated->mutable_traffic()->set_payload_bytes_summed(1000);
  auto* job = status.add_jobs();
  job->set_name("train");
  job->set_state(v1::FORMING);
  job->set_reason("waiting for node 1");
  job->mutable_settings()->set_num_nodes(2);
  auto* share = job->add_shares();
  share->set_server_id(1);
  share->set_share(0.75);
  share->set_assigned(0.74);
  auto* node = job->add_nodes();
  node->set_connected(true);
  node->set_hostname("gpu-\xff");  // not UTF-8
  return status;
}

}  // namespace addend
