/* The trainer's side of Addend: a stable C ABI (libaddend.so).
 *
 * A process calls addend_init once, which connects to the node's agent over a Unix socket. A
 * tensor is declared by name, then push-pulled round by round: every rank of the job
 * contributes, every rank receives the sum (or average, ...).
 *
 *   addend_context* ctx;
 *   if (addend_init(NULL, &ctx) != ADDEND_OK) die(addend_last_error());
 *   addend_tensor* t;
 *   int64_t shape[] = {1024};
 *   addend_declare(ctx, "gradient", shape, 1, ADDEND_FLOAT32, ADDEND_AVERAGE, &t);
 *   addend_handle* h;
 *   addend_push_pull(t, in, out, 0, &h);      // returns at once
 *   if (addend_wait(h, -1) != ADDEND_OK) die(addend_last_error());
 *   addend_release(h);
 *   addend_shutdown(ctx);
 *
 * Errors. Every function that can fail returns an addend_code; addend_last_error() returns a
 * readable sentence about the last failure in the calling thread. Once the job has failed, every
 * pending and later call returns the job's error; a call whose memory is being copied, after the
 * copy.
 *
 * Threads. All functions may be called from any thread. Blocking calls (init, wait, next_done)
 * never hold a lock that the other functions need.
 *
 * Fork. A context belongs to the process that made it: in a child of fork() the segments are not
 * mapped, the socket is closed, and every call returns ADDEND_ERROR_STATE. */
#ifndef ADDEND_CLIENT_ADDEND_H_
#define ADDEND_CLIENT_ADDEND_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

#define ADDEND_ABI_VERSION 1

typedef struct addend_context addend_context;
typedef struct addend_tensor addend_tensor;
typedef struct addend_handle addend_handle;
typedef struct addend_pin addend_pin;

typedef enum {
  ADDEND_OK = 0,
  ADDEND_ERROR_TIMEOUT = 1,    /* the caller's own time limit has passed; the operation continues */
  ADDEND_ERROR_INVALID = 64,   /* a bad argument, environment variable or configuration */
  ADDEND_ERROR_MISMATCH = 65,  /* ranks disagree on a tensor, a setting or the protocol */
  ADDEND_ERROR_VERSION = 66,   /* library and agent, or two services, are of different versions */
  ADDEND_ERROR_INTERNAL = 70,  /* a bug in Addend */
  ADDEND_ERROR_STATE = 71,     /* not initialised, shut down, or a forked child */
  ADDEND_ERROR_RESOURCES = 72, /* out of memory, here or on the summation servers */
  ADDEND_ERROR_PEER_LOST = 75, /* a rank, agent or server died */
  ADDEND_ERROR_UNREACHABLE = 76, /* no agent, or the agent cannot reach the scheduler */
  ADDEND_ERROR_PERMISSION = 77,
  ADDEND_ERROR_STALLED = 78 /* a rank did not take part within the stall timeout */
} addend_code;

typedef enum {
  ADDEND_FLOAT32 = 0,
  ADDEND_FLOAT64 = 1,
  ADDEND_FLOAT16 = 2,
  ADDEND_BFLOAT16 = 3,
  ADDEND_INT32 = 4,
  ADDEND_INT64 = 5
} addend_dtype;

typedef enum {
  ADDEND_SUM = 0,
  ADDEND_AVERAGE = 1,
  ADDEND_MIN = 2,
  ADDEND_MAX = 3,
  ADDEND_BROADCAST = 4, /* the only non-empty contribution, byte by byte */
  /* Asynchronous: a node's contribution (with several local ranks, their sum) is added to the
   * latest value as soon as it arrives, and the result is the new value, without waiting for
   * other nodes. The first contribution is the initial value. Rounds of different nodes are
   * independent. */
  ADDEND_ACCUMULATE = 5
} addend_op;

/* A field that is zero or NULL takes its default: the environment variable in brackets, if the
 * field has one. */
typedef struct {
  size_t struct_size; /* sizeof(addend_options), so that the struct can grow */
  const char* socket; /* the agent's Unix socket [ADDEND_SOCKET, else /run/addend/agent.sock] */
  int32_t rank;       /* -1: [RANK, else 0] */
  int32_t size;       /* -1: [WORLD_SIZE, else 1] */
  int32_t local_rank; /* -1: [LOCAL_RANK, else 0] */
  int32_t local_size; /* -1: [LOCAL_WORLD_SIZE, else 1] */
  const char* job;    /* refuse an agent of another job [ADDEND_JOB, else any] */
  double connect_timeout_s; /* to wait for the agent's socket, and for an agent that was killed
                               before the job began [ADDEND_CONNECT_TIMEOUT, else 60] */
} addend_options;

/* Connects to the agent and blocks until all nodes of the job have joined. `options` may be
 * NULL. */
addend_code addend_init(const addend_options* options, addend_context** context);
/* Leaves the job cleanly and frees the context with its tensors and handles. Pending operations
 * are dropped, but contributions already sent still count: only ranks that wait for further
 * contributions of this rank get an error. To the other ranks, a process that ends without this
 * call has died. */
void addend_shutdown(addend_context* context);

/* Local ranks and nodes are as the launcher counts them: where an agent serves several pods of a
 * machine, and a launcher takes each pod for a machine, a pod is a node. */
int32_t addend_rank(const addend_context* context);
int32_t addend_size(const addend_context* context);
int32_t addend_local_rank(const addend_context* context);
int32_t addend_local_size(const addend_context* context);
int32_t addend_node_rank(const addend_context* context);
int32_t addend_num_nodes(const addend_context* context);
/* With --on-node-loss=shrink: the number of nodes that take part now, and the number of nodes
 * that have come back and wait for all ranks to leave and rejoin, which begins the next
 * generation. Ranks may see a change at different times. */
int32_t addend_nodes_present(const addend_context* context);
int32_t addend_nodes_waiting(const addend_context* context);

/* Declares a tensor. `name` is UTF-8, at most 4096 bytes; `shape` has `dims` (at most 64)
 * non-negative entries. All ranks of the job must declare a name with the same shape, dtype and
 * op, in any order: a difference shows at the first push-pull, whose handle fails with
 * ADDEND_ERROR_MISMATCH on every rank. A second declaration of a name in this process returns
 * the same tensor, or ADDEND_ERROR_MISMATCH at once if it differs. The tensor lives until
 * addend_undeclare or addend_shutdown. */
addend_code addend_declare(addend_context* context, const char* name, const int64_t* shape,
                           int32_t dims, addend_dtype dtype, addend_op op, addend_tensor** tensor);
/* The same for some ranks of the job: `participants` are `count` of them, this rank included, in
 * any order. Only they take part in its rounds, and Average divides by their number. All of them
 * must name the same ranks. A rank may take part in any number of tensors of any ranks, and the
 * order of the declarations does not matter. Its rounds are in host memory: addend_push_pull_device
 * refuses the tensor, unless the participants are all ranks. */
addend_code addend_declare_among(addend_context* context, const char* name, const int64_t* shape,
                                 int32_t dims, addend_dtype dtype, addend_op op,
                                 const int32_t* participants, int32_t count,
                                 addend_tensor** tensor);
/* The same with the type in which the elements travel, of a float32 tensor with ADDEND_SUM or
 * ADDEND_AVERAGE: "bf16", "fp16" or "int8", each perhaps with " stochastic" behind it, or "same". A
 * node's contribution is rounded to it, and so is the result: two roundings, whatever the number of
 * nodes is. The bits are the same on every rank, and after every failure. All ranks must name the
 * same type. NULL: the job's (--wire-dtype of the agents). `participants` NULL with `count` 0: all
 * ranks. ADDEND_ERROR_INVALID for an unknown type, or a tensor that has no such type. */
addend_code addend_declare_wire(addend_context* context, const char* name, const int64_t* shape,
                                int32_t dims, addend_dtype dtype, addend_op op, const char* wire,
                                const int32_t* participants, int32_t count, addend_tensor** tensor);
/* Undeclares the tensor; its memory is freed once all local ranks have undeclared it. Fails with
 * ADDEND_ERROR_STATE while an operation on the tensor is pending. Afterwards the name may be
 * declared with another shape. */
addend_code addend_undeclare(addend_tensor* tensor);

/* Returns the memory from which this rank's contribution is sent: a tensor computed in place
 * there is pushed without a copy. Valid until the tensor is undeclared; must not be written
 * between a push and its result. `bytes` may be NULL. */
addend_code addend_alloc(addend_tensor* tensor, void** data, size_t* bytes);

/* Keeps the tensor's memory (of addend_alloc and addend_result) mapped until addend_unpin, even
 * after addend_undeclare or addend_shutdown: for languages whose arrays may outlive both. */
addend_code addend_pin_memory(addend_tensor* tensor, addend_pin** pin);
void addend_unpin(addend_pin* pin);

/* Starts one round and returns at once. Larger priorities go first.
 * `in`: contiguous, of the tensor's size. It is copied to the agent's memory before the call
 * returns, unless it is addend_alloc's pointer, or an earlier round of this tensor is still
 * pending: then it is copied when that round ends, and has to stay valid until this handle is
 * done. NULL: this rank contributes nothing (Average counts it as zeros).
 * `out`: receives a copy of the result before the handle is done; may equal `in`. NULL: no copy,
 * see addend_result.
 * `handle` must be released. */
addend_code addend_push_pull(addend_tensor* tensor, const void* in, void* out, int32_t priority,
                             addend_handle** handle);

/* Like addend_push_pull, for GPU memory: `in` and `out` are contiguous device pointers of type
 * `dtype`. `dtype` is the tensor's, or ADDEND_FLOAT32 for a tensor of ADDEND_FLOAT16 or
 * ADDEND_BFLOAT16, which is then converted on the device. `stream` is the caller's cudaStream_t:
 * `in` is read after the work that is now in the stream. No other work may touch either buffer
 * before addend_wait_on_stream, and both have to stay valid until the operation has ended and a
 * stream has waited for it. The call never waits for the GPU and returns at once, except the
 * first call of a process, which waits for the first call of the other local ranks. Needs
 * libaddend_cuda.so. A tensor may be pushed from the GPU in a round and from host memory in the
 * next, if all ranks of the node do the same. */
addend_code addend_push_pull_device(addend_tensor* tensor, const void* in, void* out,
                                    addend_dtype dtype, void* stream, int32_t priority,
                                    addend_handle** handle);
/* Waits like addend_wait until the result is in this machine's memory, then makes the stream
 * wait until the result is in `out`. */
addend_code addend_wait_on_stream(addend_handle* handle, double timeout_s, void* stream);

/* Returns 1 when the operation has ended, with or without an error. */
int32_t addend_poll(const addend_handle* handle);
/* Waits until the operation has ended, and returns its code. timeout_s < 0: no limit but the
 * job's stall timeout, which ends the operation. */
addend_code addend_wait(addend_handle* handle, double timeout_s);
/* Returns the result in the agent's memory, read-only, after a successful wait; valid until the
 * next push of the tensor. */
const void* addend_result(const addend_handle* handle);
/* Releases the handle. A pending operation continues without the caller: `in` and `out` are not
 * touched after this call. NULL is ignored. */
void addend_release(addend_handle* handle);
/* Sets an opaque number of the caller's choice, by which addend_next_done names the handle. */
void addend_set_tag(addend_handle* handle, uint64_t tag);
/* Waits for the next tagged handle that has ended; returns each such handle once, in the order
 * of ending. ADDEND_ERROR_TIMEOUT if no handle has ended, ADDEND_ERROR_STATE if the context is
 * shut down. The handle still belongs to the caller that started it. */
addend_code addend_next_done(addend_context* context, double timeout_s, uint64_t* tag);

/* Counters of this process since addend_init. */
typedef struct {
  uint64_t copied_in_bytes;  /* from `in` to the agent's memory */
  uint64_t copied_out_bytes; /* from the agent's memory to `out` */
  uint64_t rounds;           /* ended */
} addend_statistics;
void addend_get_statistics(const addend_context* context, addend_statistics* statistics);

/* Returns a sentence about this thread's last failure, valid until the next failing call in this
 * thread. Never NULL. */
const char* addend_last_error(void);
const char* addend_version(void);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
#endif /* ADDEND_CLIENT_ADDEND_H_ */
