/* Preloaded into a process of a test: steps its wall clock, lets calls fail and counts them,
 * under the control of a file of six numbers that the test also maps (shim.py). All other
 * behaviour is unchanged. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <netdb.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

enum { STEP_S, FAIL_ACCEPT, FAIL_WATCH, ACCEPT_CALLS, WATCH_CALLS, LOOKUPS, NUMBERS };

static volatile int64_t none[NUMBERS];
static volatile int64_t *control = none;

__attribute__((constructor)) static void map_control(void) {
  const char *path = getenv("ADDEND_TEST_SHIM");
  if (path == NULL) return;
  const int fd = open(path, O_RDWR | O_CLOEXEC);
  void *at = mmap(NULL, sizeof(none), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  close(fd);
  if (at != MAP_FAILED) control = at;
}

int clock_gettime(clockid_t clock, struct timespec *now) {
  const int result = (int)syscall(SYS_clock_gettime, clock, now);
  if (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE) now->tv_sec += control[STEP_S];
  return result;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
  struct timespec wall;
  (void)zone;
  clock_gettime(CLOCK_REALTIME, &wall);
  now->tv_sec = wall.tv_sec;
  now->tv_usec = wall.tv_nsec / 1000;
  return 0;
}

time_t time(time_t *now) {
  struct timespec wall;
  clock_gettime(CLOCK_REALTIME, &wall);
  if (now != NULL) *now = wall.tv_sec;
  return wall.tv_sec;
}

int accept4(int fd, struct sockaddr *address, socklen_t *length, int flags) {
  if (control[FAIL_ACCEPT]) {
    __atomic_fetch_add(&control[ACCEPT_CALLS], 1, __ATOMIC_RELAXED);
    errno = (int)control[FAIL_ACCEPT];
    return -1;
  }
  return (int)syscall(SYS_accept4, fd, address, length, flags);
}

/* Copies the file as it is on the disk after a sync to the folder ADDEND_TEST_SYNCED: the
 * content that a loss of power would leave. */
static void copy_synced(int fd) {
  const char *folder = getenv("ADDEND_TEST_SYNCED");
  if (folder == NULL) return;
  char link[64], path[PATH_MAX], copy[PATH_MAX], part[PATH_MAX], bytes[1 << 16];
  snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
  const ssize_t length = readlink(link, path, sizeof(path) - 1);
  if (length <= 0 || path[0] != '/') return;
  path[length] = 0;
  const int copied = snprintf(copy, sizeof(copy), "%s%s", folder, strrchr(path, '/'));
  if (copied < 0 || copied >= PATH_MAX - 5) abort();
  memcpy(part, copy, copied);
  memcpy(part + copied, ".new", 5);
  const int out = open(part, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  if (out < 0) abort();
  off_t at = 0;
  for (ssize_t got; (got = pread(fd, bytes, sizeof(bytes), at)) > 0; at += got) {
    if (write(out, bytes, got) != got) abort();
  }
  close(out);
  if (rename(part, copy) != 0) abort();
}

int fdatasync(int fd) {
  const int result = (int)syscall(SYS_fdatasync, fd);
  if (result == 0) copy_synced(fd);
  return result;
}

int fsync(int fd) {
  const int result = (int)syscall(SYS_fsync, fd);
  if (result == 0) copy_synced(fd);
  return result;
}

int epoll_ctl(int epoll, int operation, int fd, struct epoll_event *event) {
  int listens = 0;
  socklen_t length = sizeof(listens);
  if (control[FAIL_WATCH] && operation == EPOLL_CTL_ADD &&
      getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &length) == 0 && listens) {
    __atomic_fetch_add(&control[WATCH_CALLS], 1, __ATOMIC_RELAXED);
    errno = ENOMEM;
    return -1;
  }
  return (int)syscall(SYS_epoll_ctl, epoll, operation, fd, event);
}

/* "two.test" resolves to 127.0.0.7, where no process listens, and then 127.0.0.1; the lookup of
 * "never.test" never ends. */
int getaddrinfo(const char *restrict host, const char *restrict port,
                const struct addrinfo *restrict hints, struct addrinfo **restrict found) {
  int (*real)(const char *, const char *, const struct addrinfo *, struct addrinfo **) =
      (int (*)(const char *, const char *, const struct addrinfo *, struct addrinfo **))dlsym(RTLD_NEXT, "getaddrinfo");
  const int named = hints == NULL || !(hints->ai_flags & AI_NUMERICHOST);
  if (named && host != NULL && strcmp(host, "never.test") == 0) {
    __atomic_fetch_add(&control[LOOKUPS], 1, __ATOMIC_RELAXED);
    for (;;) pause();
  }
  if (!named || host == NULL || strcmp(host, "two.test") != 0) return real(host, port, hints, found);
  __atomic_fetch_add(&control[LOOKUPS], 1, __ATOMIC_RELAXED);
  struct addrinfo *second = NULL;
  const int first_error = real("127.0.0.7", port, hints, found);
  if (first_error != 0) return first_error;
  const int second_error = real("127.0.0.1", port, hints, &second);
  if (second_error == 0) (*found)->ai_next = second;
  return second_error;
}
