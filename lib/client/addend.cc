// The C ABI of addend.h: finds the object, calls it, and keeps the message of a failure. No
// exception leaves this file.
#include "lib/client/addend.h"

#include <exception>
#include <memory>
#include <new>
#include <utility>

#include "lib/base/types.h"
#include "lib/client/arguments.h"
#include "lib/client/context.h"
#include "lib/client/error.h"
#include "lib/client/fork_guard.h"
#include "lib/client/objects.h"
#include "lib/client/settings.h"

namespace addend::client {
namespace {

static_assert(ADDEND_FLOAT32 == static_cast<int>(DType::kFloat32));
static_assert(ADDEND_INT64 == static_cast<int>(DType::kInt64));
static_assert(ADDEND_INT64 + 1 == kDTypes);
static_assert(ADDEND_SUM == static_cast<int>(ReduceOp::kSum));
static_assert(ADDEND_BROADCAST == static_cast<int>(ReduceOp::kBroadcast));
static_assert(ADDEND_ACCUMULATE == static_cast<int>(ReduceOp::kAccumulate));
static_assert(ADDEND_ACCUMULATE + 1 == kReduceOps);

using Kind = Object::Kind;

// Runs `body`, which returns an Error.
template <typename Body>
addend_code Guarded(Body body) noexcept {
  try {
    return Report(body());
  } catch (const std::bad_alloc&) {
    return Report({ADDEND_ERROR_RESOURCES, "out of memory"});
  } catch (const std::exception& e) {
    return Report(MakeError(ADDEND_ERROR_RESOURCES, "the system refused: %s", e.what()));
  }
}

// Finds the object of `opaque` and runs `body` on it.
template <typename Body>
addend_code With(const void* opaque, Kind kind, Body body) noexcept {
  return Guarded([&]() -> Error {
    Object object;
    Error error = Objects::Get().Find(opaque, kind, &object);
    return error.ok() ? body(object) : error;
  });
}

Error NullArgument(const char* name) {
  return MakeError(ADDEND_ERROR_INVALID, "the argument %s is NULL", name);
}

// Returns -1 for a context that no longer exists.
template <typename Read>
int32_t ReadOf(const addend_context* context, Read read) noexcept {
  int32_t value = -1;
  With(context, Kind::kContext, [&](const Object& object) {
    value = read(*object.context);
    return Error{};
  });
  return value;
}

int32_t PlaceOf(const addend_context* context, int32_t Place::*member) noexcept {
  return ReadOf(context, [member](const Context& c) { return c.place().*member; });
}

Error Init(const addend_options* options, addend_context** context) {
  Settings settings;
  Error error = LoadSettings(options, &settings);
  if (!error.ok()) return error;
  if (!InstallForkHandlers()) {
    return MakeError(ADDEND_ERROR_RESOURCES, "out of memory for the handlers of fork()");
  }
  Object object;
  error = Context::Open(settings, &object.context);
  if (!error.ok()) return error;
  const uint64_t id = Objects::Get().NewId();
  Objects::Get().Put(id, std::move(object));
  *context = Objects::ToOpaque<addend_context>(id);
  return {};
}

Error KeepHandle(Object object, addend_handle** handle) {
  object.kind = Kind::kHandle;
  const uint64_t id = Objects::Get().NewId();
  Objects::Get().Put(id, std::move(object));
  *handle = Objects::ToOpaque<addend_handle>(id);
  return {};
}

Error CheckDeviceDtype(const Tensor& tensor, addend_dtype dtype) {
  const auto given = static_cast<DType>(dtype);
  const bool half = tensor.dtype == DType::kFloat16 || tensor.dtype == DType::kBFloat16;
  if (given == tensor.dtype || (half && given == DType::kFloat32)) return {};
  return MakeError(ADDEND_ERROR_INVALID,
                   "tensor \"%s\" is declared as %s; memory of a GPU of dtype %d cannot be pushed "
                   "as that: it has to be the same, or float32 for a float16 or bfloat16 tensor",
                   tensor.name.c_str(), std::string(Name(tensor.dtype)).c_str(),
                   static_cast<int>(dtype));
}

// Checks the participants of a tensor against the job of the object's context and writes them into
// the declaration.
Error CheckAmong(const Object& object, const char* name, const int32_t* participants, int32_t count,
                 Declaration* declaration) {
  const Place& place = object.context->place();
  return CheckParticipants(name, participants, count, place.size, place.rank,
                           &declaration->participants);
}

// Declares the tensor to the object's context; afterwards the object is the tensor's.
Error Declare(Declaration declaration, Object* object, addend_tensor** tensor) {
  Error error = object->context->operations().Declare(std::move(declaration), &object->tensor);
  if (!error.ok()) return error;
  object->kind = Kind::kTensor;
  const uint64_t id = object->tensor->id;
  Objects::Get().Put(id, std::move(*object));
  *tensor = Objects::ToOpaque<addend_tensor>(id);
  return {};
}

}  // namespace
}  // namespace addend::client

using namespace addend::client;  // NOLINT: this file is the outer face of the namespace

extern "C" {

addend_code addend_init(const addend_options* options, addend_context** context) {
  return Guarded(
      [&] { return context == nullptr ? NullArgument("context") : Init(options, context); });
}

void addend_shutdown(addend_context* context) {
  With(context, Kind::kContext, [&](const Object& object) {
    Objects::Get().RemoveContext(object.context.get());
    object.context->Shutdown();
    return Error{};
  });
}

int32_t addend_rank(const addend_context* c) { return PlaceOf(c, &Place::rank); }
int32_t addend_size(const addend_context* c) { return PlaceOf(c, &Place::size); }
int32_t addend_local_rank(const addend_context* c) { return PlaceOf(c, &Place::local_rank); }
int32_t addend_local_size(const addend_context* c) { return PlaceOf(c, &Place::local_size); }
int32_t addend_node_rank(const addend_context* c) { return PlaceOf(c, &Place::node_rank); }
int32_t addend_num_nodes(const addend_context* c) { return PlaceOf(c, &Place::num_nodes); }
int32_t addend_nodes_present(const addend_context* c) {
  return ReadOf(c, [](const Context& context) { return context.nodes_present(); });
}
int32_t addend_nodes_waiting(const addend_context* c) {
  return ReadOf(c, [](const Context& context) { return context.nodes_waiting(); });
}

addend_code addend_declare(addend_context* context, const char* name, const int64_t* shape,
                           int32_t dims, addend_dtype dtype, addend_op op, addend_tensor** tensor) {
  return addend_declare_wire(context, name, shape, dims, dtype, op, /*wire=*/nullptr,
                             /*participants=*/nullptr, /*count=*/0, tensor);
}

addend_code addend_declare_among(addend_context* context, const char* name, const int64_t* shape,
                                 int32_t dims, addend_dtype dtype, addend_op op,
                                 const int32_t* participants, int32_t count,
                                 addend_tensor** tensor) {
  return With(context, Kind::kContext, [&](Object& object) -> Error {
    if (tensor == nullptr) return NullArgument("tensor");
    Declaration declaration;
    Error error = CheckDeclaration(name, shape, dims, dtype, op, &declaration);
    if (!error.ok()) return error;
    error = CheckAmong(object, name, participants, count, &declaration);
    return error.ok() ? Declare(std::move(declaration), &object, tensor) : error;
  });
}

addend_code addend_declare_wire(addend_context* context, const char* name, const int64_t* shape,
                                int32_t dims, addend_dtype dtype, addend_op op, const char* wire,
                                const int32_t* participants, int32_t count,
                                addend_tensor** tensor) {
  return With(context, Kind::kContext, [&](Object& object) -> Error {
    if (tensor == nullptr) return NullArgument("tensor");
    Declaration declaration;
    Error error = CheckDeclaration(name, shape, dims, dtype, op, &declaration);
    if (error.ok() && wire != nullptr) error = CheckWire(wire, &declaration);
    if (error.ok() && (participants != nullptr || count != 0)) {
      error = CheckAmong(object, name, participants, count, &declaration);
    }
    return error.ok() ? Declare(std::move(declaration), &object, tensor) : error;
  });
}

addend_code addend_undeclare(addend_tensor* tensor) {
  return With(tensor, Kind::kTensor, [&](const Object& object) {
    Error error = object.context->operations().Undeclare(object.tensor);
    if (error.ok()) Objects::Get().Remove(tensor, Kind::kTensor);
    return error;
  });
}

addend_code addend_alloc(addend_tensor* tensor, void** data, size_t* bytes) {
  return With(tensor, Kind::kTensor, [&](const Object& object) {
    if (data == nullptr) return NullArgument("data");
    *data = object.tensor->contribution->data();
    if (bytes != nullptr) *bytes = object.tensor->bytes;
    return Error{};
  });
}

addend_code addend_pin_memory(addend_tensor* tensor, addend_pin** pin) {
  return With(tensor, Kind::kTensor, [&](Object& object) {
    if (pin == nullptr) return NullArgument("pin");
    const uint64_t id = Objects::Get().NewId();
    Objects::Get().Put(id, {Kind::kPin, nullptr, std::move(object.tensor), nullptr});
    *pin = Objects::ToOpaque<addend_pin>(id);
    return Error{};
  });
}

void addend_unpin(addend_pin* pin) {
  if (pin != nullptr) Objects::Get().Remove(pin, Kind::kPin);
}

addend_code addend_push_pull(addend_tensor* tensor, const void* in, void* out, int32_t priority,
                             addend_handle** handle) {
  return With(tensor, Kind::kTensor, [&](Object& object) {
    if (handle == nullptr) return NullArgument("handle");
    Error error =
        object.context->operations().Push(object.tensor, in, out, priority, &object.operation);
    return error.ok() ? KeepHandle(std::move(object), handle) : error;
  });
}

addend_code addend_push_pull_device(addend_tensor* tensor, const void* in, void* out,
                                    addend_dtype dtype, void* stream, int32_t priority,
                                    addend_handle** handle) {
  return With(tensor, Kind::kTensor, [&](Object& object) {
    if (handle == nullptr) return NullArgument("handle");
    if (out == nullptr) return NullArgument("out");
    const DeviceMemory memory{in, out, static_cast<addend::DType>(dtype), stream};
    Error error = CheckDeviceDtype(*object.tensor, dtype);
    if (!error.ok()) return error;
    error = object.context->PushFromDevice(object.tensor, memory, priority, &object.operation);
    return error.ok() ? KeepHandle(std::move(object), handle) : error;
  });
}

addend_code addend_wait_on_stream(addend_handle* handle, double timeout_s, void* stream) {
  return With(handle, Kind::kHandle, [&](const Object& object) {
    return object.context->WaitOnStream(object.operation, timeout_s, stream);
  });
}

int32_t addend_poll(const addend_handle* handle) {
  bool done = true;  // a handle that no longer exists counts as done
  With(handle, Kind::kHandle, [&](const Object& object) {
    done = object.operation->done.load(std::memory_order_acquire);
    return Error{};
  });
  return done ? 1 : 0;
}

addend_code addend_wait(addend_handle* handle, double timeout_s) {
  return With(handle, Kind::kHandle, [&](const Object& object) {
    return object.context->operations().Wait(object.operation, timeout_s);
  });
}

const void* addend_result(const addend_handle* handle) {
  const void* result = nullptr;
  With(handle, Kind::kHandle, [&](const Object& object) -> Error {
    const Operation& operation = *object.operation;
    if (!operation.done.load(std::memory_order_acquire)) {
      return MakeError(ADDEND_ERROR_STATE, "the push-pull is still under way; wait for it first");
    }
    if (operation.error.ok()) result = operation.result;
    return operation.error;
  });
  return result;
}

void addend_release(addend_handle* handle) {
  if (handle == nullptr) return;
  With(handle, Kind::kHandle, [&](const Object& object) {
    object.context->operations().Release(object.operation);
    Objects::Get().Remove(handle, Kind::kHandle);
    return Error{};
  });
}

void addend_set_tag(addend_handle* handle, uint64_t tag) {
  With(handle, Kind::kHandle, [&](const Object& object) {
    object.context->operations().SetTag(object.operation, tag);
    return Error{};
  });
}

addend_code addend_next_done(addend_context* context, double timeout_s, uint64_t* tag) {
  return With(context, Kind::kContext, [&](const Object& object) {
    return tag == nullptr ? NullArgument("tag")
                          : object.context->operations().NextDone(timeout_s, tag);
  });
}

void addend_get_statistics(const addend_context* context, addend_statistics* statistics) {
  if (statistics == nullptr) return;
  *statistics = {};
  With(context, Kind::kContext, [&](const Object& object) {
    *statistics = object.context->operations().statistics();
    return Error{};
  });
}

const char* addend_last_error(void) { return LastError(); }
const char* addend_version(void) { return ADDEND_VERSION; }

}  // extern "C"
