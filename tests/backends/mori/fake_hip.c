/* As much of AMD's HIP runtime as MORI-IO's xgmi needs, on memory of the host: a "GPU" is a memfd that other
 * processes of this user map. It shows nothing of a GPU: copies are made by the caller, at once. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

struct allocation {
    char *start;
    size_t nbytes;
    int fd;
    struct allocation *next;
};
struct handle { /* hipIpcMemHandle_t */
    int pid, fd;
    size_t nbytes;
    char rest[48];
};

static struct allocation *all;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static __thread int current;

int hipMalloc(void **out, size_t nbytes) {
    struct allocation *made = malloc(sizeof *made);
    made->nbytes = nbytes;
    made->fd = memfd_create("hip", 0);
    if (ftruncate(made->fd, nbytes)) return 2;
    made->start = mmap(0, nbytes, PROT_READ | PROT_WRITE, MAP_SHARED, made->fd, 0);
    pthread_mutex_lock(&lock);
    made->next = all;
    all = made;
    pthread_mutex_unlock(&lock);
    *out = made->start;
    return 0;
}

static struct allocation *found(void *address) {
    struct allocation *one;
    pthread_mutex_lock(&lock);
    for (one = all; one; one = one->next)
        if ((char *)address >= one->start && (char *)address < one->start + one->nbytes) break;
    pthread_mutex_unlock(&lock);
    return one;
}

int hipMemGetAddressRange(void **start, size_t *nbytes, void *address) {
    struct allocation *one = found(address);
    if (!one) return 1;
    *start = one->start;
    *nbytes = one->nbytes;
    return 0;
}

int hipIpcGetMemHandle(struct handle *out, void *address) {
    struct allocation *one = found(address);
    if (!one) return 1;
    memset(out, 0, sizeof *out);
    out->pid = getpid();
    out->fd = one->fd;
    out->nbytes = one->nbytes;
    return 0;
}

int hipIpcOpenMemHandle(void **out, struct handle of, unsigned flags) {
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/fd/%d", of.pid, of.fd);
    int fd = open(path, O_RDWR);
    if (fd < 0) return 1;
    *out = mmap(0, of.nbytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    return *out == MAP_FAILED;
}

int hipMemcpyAsync(void *to, const void *from, size_t nbytes, int kind, void *stream) {
    memcpy(to, from, nbytes);
    return 0;
}
int hipMemcpyPeerAsync(void *to, int there, const void *from, int here, size_t nbytes, void *s) {
    memcpy(to, from, nbytes);
    return 0;
}
int hipGetDeviceCount(int *count) { return *count = 1, 0; }
int hipGetDevice(int *number) { return *number = current, 0; }
int hipSetDevice(int number) { return current = number, 0; }
int hipDeviceGetPCIBusId(char *out, int nbytes, int number) {
    return snprintf(out, nbytes, "0000:C1:00.%d", number), 0;
}
int hipDeviceCanAccessPeer(int *can, int from, int to) { return *can = 1, 0; }
int hipEventCreateWithFlags(void **event, unsigned flags) { return *event = malloc(1), 0; }
int hipStreamCreateWithFlags(void **stream, unsigned flags) { return *stream = malloc(1), 0; }
const char *hipGetErrorString(int error) { return "an error of the fake"; }
int hipModuleLoad(void **module, const char *path) { return 1; }
