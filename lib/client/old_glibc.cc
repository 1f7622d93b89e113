// Lets libaddend.so run with a glibc that is older than that of the machine which builds it, down
// to 2.28: images of PyTorch and distributions of long support have old ones.
//
// Functions that moved from libpthread and libdl into libc (glibc 2.34) are asked for by their
// older version; the linker replaces each use (option --wrap), those in libstdc++.a too. What glibc
// did not have is defined here, hidden, in terms of what it had.
#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <pthread.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstring>
#include <ctime>

#if defined(__x86_64__)
#define ADDEND_SINCE "GLIBC_2.2.5"
#define ADDEND_DLMOPEN_SINCE "GLIBC_2.3.4"
#define ADDEND_NAMES_SINCE "GLIBC_2.12"
#define ADDEND_JUMP "jmp "
#define ADDEND_FAR "@PLT"
#elif defined(__aarch64__)
#define ADDEND_SINCE "GLIBC_2.17"
#define ADDEND_DLMOPEN_SINCE "GLIBC_2.17"
#define ADDEND_NAMES_SINCE "GLIBC_2.17"
#define ADDEND_JUMP "b "
#define ADDEND_FAR ""
#else
#error "old_glibc.cc knows the versions of x86-64 and of aarch64"
#endif

// __wrap_NAME jumps to the function of that version, so that it takes any arguments, and its caller
// remains its caller (dlsym looks at it).
#define ADDEND_OLD_SINCE(name, version)              \
  __asm__(".symver old_" #name "," #name "@" version \
          "\n"                                       \
          ".text\n"                                  \
          ".globl __wrap_" #name                     \
          "\n"                                       \
          ".hidden __wrap_" #name                    \
          "\n"                                       \
          ".type __wrap_" #name                      \
          ", @function\n"                            \
          "__wrap_" #name ":\n" ADDEND_JUMP "old_" #name ADDEND_FAR "\n")
#define ADDEND_OLD(name) ADDEND_OLD_SINCE(name, ADDEND_SINCE)

ADDEND_OLD(dladdr);
ADDEND_OLD(dlclose);
ADDEND_OLD(dlerror);
ADDEND_OLD(dlopen);
ADDEND_OLD(dlsym);
ADDEND_OLD(dlvsym);
ADDEND_OLD(pthread_condattr_setpshared);
ADDEND_OLD(pthread_create);
ADDEND_OLD(pthread_detach);
ADDEND_OLD(pthread_getspecific);
ADDEND_OLD(pthread_join);
ADDEND_OLD(pthread_key_create);
ADDEND_OLD(pthread_key_delete);
ADDEND_OLD(pthread_kill);
ADDEND_OLD(pthread_mutex_trylock);
ADDEND_OLD(pthread_mutexattr_destroy);
ADDEND_OLD(pthread_mutexattr_init);
ADDEND_OLD(pthread_mutexattr_setpshared);
ADDEND_OLD(pthread_mutexattr_settype);
ADDEND_OLD(pthread_once);
ADDEND_OLD(pthread_rwlock_destroy);
ADDEND_OLD(pthread_rwlock_init);
ADDEND_OLD(pthread_rwlock_rdlock);
ADDEND_OLD(pthread_rwlock_timedrdlock);
ADDEND_OLD(pthread_rwlock_timedwrlock);
ADDEND_OLD(pthread_rwlock_tryrdlock);
ADDEND_OLD(pthread_rwlock_trywrlock);
ADDEND_OLD(pthread_rwlock_unlock);
ADDEND_OLD(pthread_rwlock_wrlock);
ADDEND_OLD(pthread_rwlockattr_destroy);
ADDEND_OLD(pthread_rwlockattr_init);
ADDEND_OLD(pthread_rwlockattr_setpshared);
ADDEND_OLD(pthread_setspecific);
ADDEND_OLD(pthread_spin_destroy);
ADDEND_OLD(pthread_spin_init);
ADDEND_OLD(pthread_spin_lock);
ADDEND_OLD(pthread_spin_trylock);
ADDEND_OLD(pthread_spin_unlock);
ADDEND_OLD(sem_destroy);
ADDEND_OLD(sem_init);
ADDEND_OLD(sem_post);
ADDEND_OLD(sem_timedwait);
ADDEND_OLD(sem_trywait);
ADDEND_OLD(sem_wait);
ADDEND_OLD(shm_open);
ADDEND_OLD(shm_unlink);
ADDEND_OLD_SINCE(dlmopen, ADDEND_DLMOPEN_SINCE);
ADDEND_OLD_SINCE(pthread_setname_np, ADDEND_NAMES_SINCE);
// libgcc asks for it to learn whether there are threads.
ADDEND_OLD(__pthread_key_create);

// NOLINTBEGIN(bugprone-reserved-identifier): the names that the linker asks for.
extern "C" {

// Since 2.32 in libc; before in libpthread.
int __wrap_pthread_sigmask(int how, const sigset_t* set, sigset_t* old) {
  constexpr size_t kKernelBytes = 8;  // of the kernel's signal set
  return syscall(SYS_rt_sigprocmask, how, set, old, kKernelBytes) == 0 ? 0 : errno;
}

// A function since 2.33; before, a macro. The kernel's struct is glibc's on both processors.
int __wrap_fstat(int fd, struct stat* found) {
  return static_cast<int>(syscall(SYS_fstat, fd, found));
}

// Since 2.30, and with steady clocks alone: std::condition_variable uses it so. Before, it waits by
// the other clock, for a second at most, and then says that it woke up for no reason.
int __wrap_pthread_cond_clockwait(pthread_cond_t* condition, pthread_mutex_t* mutex,
                                  clockid_t clock, const timespec* until) {
  using Wait = int (*)(pthread_cond_t*, pthread_mutex_t*, clockid_t, const timespec*);
  static const Wait wait = reinterpret_cast<Wait>(dlsym(RTLD_DEFAULT, "pthread_cond_clockwait"));
  if (wait != nullptr) return wait(condition, mutex, clock, until);
  constexpr int64_t kSecond = 1'000'000'000;
  timespec now{};
  clock_gettime(clock, &now);
  const int64_t left = (until->tv_sec - now.tv_sec) * kSecond + until->tv_nsec - now.tv_nsec;
  if (left <= 0) return ETIMEDOUT;
  const int64_t slice = left < kSecond ? left : kSecond;
  timespec end{};
  clock_gettime(CLOCK_REALTIME, &end);
  const int64_t nanoseconds = end.tv_nsec + slice;
  end.tv_sec += nanoseconds / kSecond;
  end.tv_nsec = nanoseconds % kSecond;
  const int result = pthread_cond_timedwait(condition, mutex, &end);
  return result == ETIMEDOUT && slice < left ? 0 : result;
}

// Since 2.32. False: std::shared_ptr counts atomically.
__attribute__((visibility("hidden"))) char __libc_single_threaded = 0;

// Since 2.36. std::random_device uses it.
__attribute__((visibility("hidden"))) uint32_t arc4random() {
  uint32_t value = 0;
  while (getrandom(&value, sizeof value, 0) != sizeof value) {
  }
  return value;
}

#ifdef DLFO_STRUCT_HAS_EH_DBASE

namespace {

struct Searched {
  uintptr_t address;
  dl_find_object* found;
};

int Examine(dl_phdr_info* object, size_t, void* argument) {
  auto* searched = static_cast<Searched*>(argument);
  const ElfW(Phdr)* frames = nullptr;
  uintptr_t begin = UINTPTR_MAX, end = 0;
  bool inside = false;
  for (int i = 0; i < object->dlpi_phnum; ++i) {
    const ElfW(Phdr)& part = object->dlpi_phdr[i];
    const uintptr_t start = object->dlpi_addr + part.p_vaddr;
    if (part.p_type == PT_GNU_EH_FRAME) frames = &part;
    if (part.p_type != PT_LOAD) continue;
    inside |= searched->address >= start && searched->address < start + part.p_memsz;
    begin = start < begin ? start : begin;
    end = start + part.p_memsz > end ? start + part.p_memsz : end;
  }
  if (!inside || frames == nullptr) return 0;
  searched->found->dlfo_map_start = reinterpret_cast<void*>(begin);
  searched->found->dlfo_map_end = reinterpret_cast<void*>(end);
  searched->found->dlfo_eh_frame = reinterpret_cast<void*>(object->dlpi_addr + frames->p_vaddr);
  return 1;
}

}  // namespace

// Since 2.35. libgcc finds by it the object whose code throws.
__attribute__((visibility("hidden"))) int _dl_find_object(void* address, dl_find_object* found) {
  memset(found, 0, sizeof *found);
  Searched searched{reinterpret_cast<uintptr_t>(address), found};
  return dl_iterate_phdr(Examine, &searched) == 1 ? 0 : -1;
}

#endif  // DLFO_STRUCT_HAS_EH_DBASE

}  // extern "C"
// NOLINTEND(bugprone-reserved-identifier)
