// The scheduler's records (proto/addend/v1/scheduler_store.proto): the state as it is stored, and
// read back. Pure.
//
// A record that is read may come from a damaged file or from another program. It is checked against
// the records that were read before it, so that the scheduler can work with it. DATA_LOSS says in a
// few words why a record cannot be used.
#pragma once

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/addend/v1/scheduler_store.pb.h"
#include "services/scheduler/agreements.h"
#include "services/scheduler/fleet.h"
#include "services/scheduler/job.h"
#include "services/scheduler/record_keys.h"

namespace addend::records {

v1::IdsRecord RecordOfIds(const Fleet& fleet, const Jobs& jobs);
v1::ServerRecord RecordOf(const Server& server);
v1::JobRecord RecordOf(const Job& job);
v1::NodeRecord RecordOf(const Job& job, const Node& node);
v1::AgreementRecord RecordOf(const Job& job, const DeclaredTensor& tensor);
v1::PlanRecord PlanRecordOf(const Job& job, const DeclaredTensor& tensor);

// The state of a record, without the parts that are not stored: leases, loads, answers.
absl::Status Check(const v1::IdsRecord& record);
absl::StatusOr<Server> From(const v1::ServerRecord& record, const Fleet& fleet);
absl::StatusOr<Job> From(const v1::JobRecord& record, const Jobs& jobs);
absl::StatusOr<Node> From(const v1::NodeRecord& record, const Job& job);
absl::StatusOr<DeclaredTensor> From(const v1::AgreementRecord& record, const Job& job);
// `tensor`: of the plan's agreement.
absl::Status Check(const v1::PlanRecord& record, const Job& job, const DeclaredTensor& tensor);

}  // namespace addend::records
