// An API server's objects in memory, with its rules for versions, and with faults.
#pragma once

#include <algorithm>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "lib/base/mutex.h"
#include "services/scheduler/store/kubernetes_api.h"

namespace addend {

class FakeObjects final : public KubernetesObjects {
 public:
  enum class Fault { kNone, kLost, kNoAnswer };  // kLost: not carried out; kNoAnswer: carried out

  // Asked before each call: "GET name", "POST name", "PUT name", "DELETE name", "LIST".
  std::function<Fault(const std::string& call)> fault = [](const std::string&) {
    return Fault::kNone;
  };

  absl::StatusOr<nlohmann::json> Get(ObjectKind kind, const std::string& name,
                                     absl::Time) override {
    return Call("GET " + name, [&]() -> absl::StatusOr<nlohmann::json> {
      const auto found = objects_.find({kind, name});
      if (found == objects_.end()) return absl::NotFoundError(name + " not found");
      return found->second;
    });
  }

  absl::StatusOr<nlohmann::json> Create(ObjectKind kind, const nlohmann::json& object,
                                        absl::Time) override {
    const std::string name = TextAt(object, "/metadata/name");
    return Call("POST " + name, [&]() -> absl::StatusOr<nlohmann::json> {
      if (objects_.contains({kind, name})) return absl::AlreadyExistsError(name);
      return Put(kind, name, object);
    });
  }

  absl::StatusOr<nlohmann::json> Replace(ObjectKind kind, const nlohmann::json& object,
                                         absl::Time) override {
    const std::string name = TextAt(object, "/metadata/name");
    return Call("PUT " + name, [&]() -> absl::StatusOr<nlohmann::json> {
      const auto found = objects_.find({kind, name});
      if (found == objects_.end()) return absl::NotFoundError(name);
      if (TextAt(found->second, "/metadata/resourceVersion") !=
          TextAt(object, "/metadata/resourceVersion")) {
        return absl::AbortedError("the object has been modified");
      }
      return Put(kind, name, object);
    });
  }

  absl::Status Delete(ObjectKind kind, const std::string& name, absl::Time) override {
    return Call("DELETE " + name,
                [&]() -> absl::StatusOr<nlohmann::json> {
                  if (objects_.erase({kind, name}) == 0) return absl::NotFoundError(name);
                  return nlohmann::json::object();
                })
        .status();
  }

  absl::StatusOr<std::vector<std::string>> List(ObjectKind kind, const std::string& label,
                                                const std::string& value, absl::Time) override {
    if (fault("LIST") != Fault::kNone) return absl::UnavailableError("no answer");
    MutexLock lock(&mu_);
    std::vector<std::string> names;
    for (const auto& [key, object] : objects_) {
      const auto labels = object.value("/metadata/labels"_json_pointer, nlohmann::json::object());
      if (key.first == kind && labels.value(label, "") == value) names.push_back(key.second);
    }
    return names;
  }

  std::string Describe() const override { return "the fake API"; }

  // As another program would, whatever the version.
  void Touch(ObjectKind kind, const std::string& name) {
    MutexLock lock(&mu_);
    Put(kind, name, objects_.at({kind, name}));
  }
  void Set(ObjectKind kind, const std::string& name, const char* pointer,
           const nlohmann::json& value) {
    MutexLock lock(&mu_);
    nlohmann::json object = objects_.at({kind, name});
    object[nlohmann::json::json_pointer(pointer)] = value;
    Put(kind, name, object);
  }
  void Remove(ObjectKind kind, const std::string& name) {
    MutexLock lock(&mu_);
    objects_.erase({kind, name});
  }
  std::vector<std::string> Names(ObjectKind kind) {
    MutexLock lock(&mu_);
    std::vector<std::string> names;
    for (const auto& [key, object] : objects_) {
      if (key.first == kind) names.push_back(key.second);
    }
    return names;
  }
  // Of the largest Secret, as Kubernetes counts.
  size_t LargestBytes() {
    MutexLock lock(&mu_);
    size_t largest = 0;
    for (const auto& [key, object] : objects_) {
      size_t bytes = 0;
      if (!object.contains("data")) continue;
      for (const auto& [name, value] : object["data"].items()) {
        bytes += name.size() + value.get<std::string>().size() / 4 * 3;
      }
      largest = std::max(largest, bytes);
    }
    return largest;
  }

 private:
  template <typename Act>
  absl::StatusOr<nlohmann::json> Call(const std::string& call, Act act) {
    const Fault happens = fault(call);
    if (happens == Fault::kLost) return absl::UnavailableError("no answer");
    MutexLock lock(&mu_);
    auto answer = act();
    if (happens == Fault::kNoAnswer) return absl::UnavailableError("no answer");
    return answer;
  }
  nlohmann::json Put(ObjectKind kind, const std::string& name, nlohmann::json object) {
    object["metadata"]["resourceVersion"] = absl::StrCat(++version_);
    objects_[{kind, name}] = object;
    return object;
  }

  Mutex mu_;
  std::map<std::pair<ObjectKind, std::string>, nlohmann::json> objects_;
  int version_ = 0;
};

}  // namespace addend
