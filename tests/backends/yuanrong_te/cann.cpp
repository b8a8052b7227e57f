// As much of CANN and of the vendor's own libp2p_transfer as its TransferEngine asks for, on the host: streams are threads,
// bytes go through a socket between two processes. One library for both names.
//
// CANN_STALL_MS: how long each piece waits before it is taken.

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>

namespace {

constexpr int ROOT_INFO_BYTES = 4108;
constexpr int RECEIVER = 0;
constexpr int FAILED = 7;
constexpr int TIMED_OUT = 107020;

struct Stream {
    std::mutex lock;
    std::condition_variable changed;
    std::deque<std::function<bool()>> tasks;
    uint64_t given = 0, done = 0;
    bool broken = false, over = false;
    std::thread thread;

    Stream() : thread([this] { run(); }) {}

    ~Stream()
    {
        {
            std::lock_guard<std::mutex> held(lock);
            over = true;
        }
        changed.notify_all();
        thread.join();
    }

    void give(std::function<bool()> task)
    {
        std::lock_guard<std::mutex> held(lock);
        tasks.push_back(std::move(task));
        ++given;
        changed.notify_all();
    }

    bool wait(uint64_t until, int timeout_ms)
    {
        std::unique_lock<std::mutex> held(lock);
        return changed.wait_for(held, std::chrono::milliseconds(timeout_ms),
                                [&] { return broken || done >= until; }) && !broken;
    }

    void run()
    {
        for (;;) {
            std::function<bool()> task;
            {
                std::unique_lock<std::mutex> held(lock);
                changed.wait(held, [&] { return over || !tasks.empty(); });
                if (over) {
                    return;
                }
                task = std::move(tasks.front());
                tasks.pop_front();
            }
            bool fine = task();
            std::lock_guard<std::mutex> held(lock);
            ++done;
            broken = broken || !fine;
            changed.notify_all();
        }
    }
};

struct Event {
    Stream *stream = nullptr;
    uint64_t until = 0;
};

struct Comm {
    int fd;
    explicit Comm(int fd) : fd(fd) {}
    ~Comm() { close(fd); }
};

using Shared = std::shared_ptr<Comm>;

std::mutex g_lock;
std::map<std::string, int> g_listening;
std::set<Stream *> g_streams;
int g_serial = 0;
thread_local int t_device = -1;

sockaddr_un address_of(const std::string &name, socklen_t *length)
{
    sockaddr_un address {};
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path + 1, name.data(), name.size());
    *length = offsetof(sockaddr_un, sun_path) + 1 + name.size();
    return address;
}

bool all(int fd, char *bytes, uint64_t count, bool out)
{
    while (count > 0) {
        ssize_t moved = out ? send(fd, bytes, count, MSG_NOSIGNAL) : recv(fd, bytes, count, 0);
        if (moved <= 0) {
            return false;
        }
        bytes += moved;
        count -= moved;
    }
    return true;
}

void stall()
{
    if (const char *ms = std::getenv("CANN_STALL_MS")) {
        std::this_thread::sleep_for(std::chrono::milliseconds(std::atoi(ms)));
    }
}

}  // namespace

extern "C" {

int aclrtSetDevice(int32_t device) { t_device = device; return 0; }

int aclrtGetCurrentContext(void **context)
{
    *context = t_device < 0 ? nullptr : &t_device;
    return 0;
}

int aclrtCreateStream(void **stream)
{
    auto *made = new Stream;
    std::lock_guard<std::mutex> held(g_lock);
    g_streams.insert(made);
    *stream = made;
    return 0;
}

int aclrtDestroyStream(void *stream)
{
    {
        std::lock_guard<std::mutex> held(g_lock);
        g_streams.erase(static_cast<Stream *>(stream));
    }
    delete static_cast<Stream *>(stream);
    return 0;
}

int aclrtSynchronizeStream(void *stream)
{
    auto *one = static_cast<Stream *>(stream);
    return one->wait(one->given, 1 << 30) ? 0 : TIMED_OUT;
}

int aclrtSynchronizeDevice()
{
    std::lock_guard<std::mutex> held(g_lock);
    for (Stream *one : g_streams) {
        one->wait(one->given, 1 << 30);
    }
    return 0;
}

int aclrtCreateEvent(void **event) { *event = new Event; return 0; }
int aclrtDestroyEvent(void *event) { delete static_cast<Event *>(event); return 0; }

int aclrtRecordEvent(void *event, void *stream)
{
    auto *one = static_cast<Event *>(event);
    one->stream = static_cast<Stream *>(stream);
    one->until = one->stream->given;
    return 0;
}

int aclrtSynchronizeEventWithTimeout(void *event, int32_t timeout_ms)
{
    auto *one = static_cast<Event *>(event);
    return one->stream->wait(one->until, timeout_ms) ? 0 : TIMED_OUT;
}

int aclrtSynchronizeEvent(void *event) { return aclrtSynchronizeEventWithTimeout(event, 1 << 30); }

int P2PGetRootInfo(char *info)
{
    std::lock_guard<std::mutex> held(g_lock);
    std::string name = "cann-double-" + std::to_string(getpid()) + "-" + std::to_string(++g_serial);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    socklen_t length;
    sockaddr_un address = address_of(name, &length);
    if (bind(fd, reinterpret_cast<sockaddr *>(&address), length) || listen(fd, 1)) {
        close(fd);
        return FAILED;
    }
    g_listening[name] = fd;
    std::memset(info, 0, ROOT_INFO_BYTES);
    std::memcpy(info, name.data(), name.size());
    return 0;
}

int P2PCommInitRootInfo(const char *info, int kind, int, void **comm)
{
    std::string name(info);
    int fd = -1;
    if (kind == RECEIVER) {
        int listening;
        {
            std::lock_guard<std::mutex> held(g_lock);
            listening = g_listening[name];
            g_listening.erase(name);
        }
        fd = accept(listening, nullptr, nullptr);
        close(listening);
    } else {
        fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
        socklen_t length;
        sockaddr_un address = address_of(name, &length);
        if (connect(fd, reinterpret_cast<sockaddr *>(&address), length)) {
            close(fd);
            fd = -1;
        }
    }
    if (fd < 0) {
        return FAILED;
    }
    *comm = new Shared(std::make_shared<Comm>(fd));
    return 0;
}

int P2PCommDestroy(void *comm)
{
    auto *one = static_cast<Shared *>(comm);
    shutdown((*one)->fd, SHUT_RDWR);
    delete one;  // what is under way has a share of its own
    return 0;
}

int P2PGetCommAsyncError(void *, int *error) { *error = 0; return 0; }

int P2PSend(void *bytes, uint64_t count, int, void *comm, void *stream)
{
    Shared one = *static_cast<Shared *>(comm);
    static_cast<Stream *>(stream)->give([=] { return all(one->fd, static_cast<char *>(bytes), count, true); });
    return 0;
}

int P2PRecv(void *bytes, uint64_t count, int, void *comm, void *stream)
{
    Shared one = *static_cast<Shared *>(comm);
    static_cast<Stream *>(stream)->give([=] {
        stall();
        return all(one->fd, static_cast<char *>(bytes), count, false);
    });
    return 0;
}

}  // extern "C"
