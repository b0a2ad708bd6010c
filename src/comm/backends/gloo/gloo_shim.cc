/*
 * Gloo's collectives over sockets that Inspan has opened (gloo_shim.h). All of C++ and Gloo that Inspan has.
 *
 * Gloo's TCP transport is used as it is, but for three things that its own classes leave open to their
 * children:
 *
 *   Pair     takes a connected socket. Gloo would let each pair listen and accept whoever comes first; here
 * the sockets come authenticated. What a handler throws on Gloo's I/O thread, where nobody would catch it,
 *            breaks the pair alone.
 *   Context  remembers the buffers in use, so that abort can end the waits for them.
 *   Buffer   one of those.
 *
 * Abort. Gloo of 2022 has none: closing its connections leaves a pending operation waiting for its own
 * timeout. Shutting the sockets down, over copies of their descriptors that are ours (Gloo may close its own
 * at any moment), ends what waits for a connection, here and on the peers; but not a receive that is in the
 * middle of its bytes and not a send that waits for room: those wait in a Buffer, and are told there.
 *
 * An operation that has ended, in whatever way, has destroyed its buffers, and Gloo's I/O thread touches no
 * memory of a destroyed one (missing/gloo/common/memory.h): the caller's memory is the caller's again.
 */
#include "comm/backends/gloo/gloo_shim.h"

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstring>
#include <exception>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <unordered_set>
#include <vector>

#include <fcntl.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <gloo/allgatherv.h>
#include <gloo/allreduce.h>
#include <gloo/barrier.h>
#include <gloo/broadcast.h>
#include <gloo/config.h>
#include <gloo/context.h>
#include <gloo/transport/tcp/context.h>
#include <gloo/transport/tcp/device.h>
#include <gloo/transport/tcp/pair.h>
#include <gloo/transport/tcp/unbound_buffer.h>

namespace
{

namespace tcp = gloo::transport::tcp;
using std::chrono::milliseconds;

int copy_of(int fd)
{
    const int copy = fcntl(fd, F_DUPFD_CLOEXEC, 3);
    if (copy < 0) throw std::runtime_error(std::string("no descriptor for a connection: ") + strerror(errno));
    return copy;
}

class Context;

class Pair final : public tcp::Pair
{
  public:
    Pair(Context &owner, tcp::Device *device, int rank, milliseconds patience, int socket);
    ~Pair() override
    {
        retire();
        if (copy_ >= 0) ::close(copy_);
    }

    void handleEvents(int events) override
    {
        try {
            tcp::Pair::handleEvents(events);
        } catch (const std::exception &e) {
            signalExceptionExternal(e.what());
        }
    }

    /* Close, but let arrive what was sent. */
    void retire()
    {
        std::lock_guard<std::mutex> lock(m_);
        retired_ = true;
        if (state_ != CLOSED) tcp::Pair::changeState(CLOSED);
    }

    void shut() const
    {
        ::shutdown(copy_, SHUT_RDWR);
    }

    void count(uint64_t &sent, uint64_t &received) const
    {
        struct tcp_info info = {};
        socklen_t length = sizeof info;
        if (getsockopt(copy_, IPPROTO_TCP, TCP_INFO, &info, &length) != 0) return;
        sent += info.tcpi_bytes_sent - info.tcpi_bytes_retrans - sent_before_;
        received += info.tcpi_bytes_received - received_before_;
    }

  protected:
    void changeState(state next) noexcept override;

  private:
    void take(int socket);

    Context &owner_;
    int copy_ = -1;
    bool retired_ = false;
    uint64_t sent_before_ = 0, received_before_ = 0; /* while the ranks connected */
};

class Buffer final : public tcp::UnboundBuffer
{
  public:
    Buffer(const std::shared_ptr<tcp::Context> &context, Context &owner, void *memory, size_t bytes);
    ~Buffer() override;
    void fail(const std::exception_ptr &error)
    {
        signalException(error);
    }

  private:
    Context &owner_;
};

class Context final : public tcp::Context
{
  public:
    Context(const std::shared_ptr<tcp::Device> &device, int rank, int size, const int *sockets)
        : tcp::Context(device, rank, size), sockets_(sockets)
    {
    }
    ~Context() override
    {
        pairs_.clear(); /* they look at what is below */
    }

    std::unique_ptr<gloo::transport::Pair> &createPair(int peer) override
    {
        pairs_[peer].reset(new Pair(*this, device_.get(), peer, getTimeout(), sockets_[peer]));
        return pairs_[peer];
    }

    std::unique_ptr<gloo::transport::UnboundBuffer> createUnboundBuffer(void *memory, size_t bytes) override
    {
        return std::unique_ptr<gloo::transport::UnboundBuffer>(
            new Buffer(shared_from_this(), *this, memory, bytes));
    }

    template <typename F> void each_pair(F &&f) const
    {
        for (const auto &pair : pairs_)
            if (pair) f(static_cast<Pair &>(*pair));
    }

    void abort()
    {
        aborted_ = true;
        each_pair([](const Pair &pair) { pair.shut(); });
        std::lock_guard<std::mutex> lock(mutex_of_buffers_);
        for (Buffer *buffer : buffers_) buffer->fail(aborted_error());
    }

    void enter(Buffer *buffer)
    {
        std::lock_guard<std::mutex> lock(mutex_of_buffers_);
        buffers_.insert(buffer);
        if (aborted_) buffer->fail(aborted_error());
    }

    void leave(Buffer *buffer)
    {
        std::lock_guard<std::mutex> lock(mutex_of_buffers_);
        buffers_.erase(buffer);
    }

    void broke(int peer) noexcept
    {
        int none = -1;
        if (!aborted_) first_broken_.compare_exchange_strong(none, peer);
    }

    bool aborted() const
    {
        return aborted_;
    }
    int first_broken() const
    {
        return first_broken_;
    }

  private:
    static std::exception_ptr aborted_error()
    {
        return std::make_exception_ptr(gloo::IoException("aborted"));
    }

    const int *sockets_; /* while pairs are made */
    std::atomic<bool> aborted_{false};
    std::atomic<int> first_broken_{-1};
    std::mutex mutex_of_buffers_;
    std::unordered_set<Buffer *> buffers_;
};

Pair::Pair(Context &owner, tcp::Device *device, int rank, milliseconds patience, int socket)
    : tcp::Pair(&owner, device, rank, patience), owner_(owner)
{
    copy_ = copy_of(socket);
    try {
        take(socket);
    } catch (...) {
        ::close(copy_);
        throw;
    }
}

/* The constructor of Gloo's Pair listens, on loopback here; nobody is to come. */
void Pair::take(int socket)
{
    std::lock_guard<std::mutex> lock(m_);
    if (state_ != LISTENING || fd_ < 0) throw std::runtime_error("a stranger connected to Gloo");
    device_->unregisterDescriptor(fd_, this);
    ::close(fd_);
    fd_ = -1;
    fd_ = copy_of(socket);
    /* Gloo writes whole segments: the small bound on what lies unsent is for streams that are shared. */
    const int unbounded = 0;
    setsockopt(fd_, IPPROTO_TCP, TCP_NOTSENT_LOWAT, &unbounded, sizeof unbounded);
    handleConnected();
    uint64_t sent = 0, received = 0;
    count(sent, received);
    sent_before_ = sent;
    received_before_ = received;
}

void Pair::changeState(state next) noexcept
{
    if (next == CLOSED && !retired_) owner_.broke(rank_);
    tcp::Pair::changeState(next);
}

Buffer::Buffer(const std::shared_ptr<tcp::Context> &context, Context &owner, void *memory, size_t bytes)
    : tcp::UnboundBuffer(context, memory, bytes), owner_(owner)
{
    owner_.enter(this);
}

Buffer::~Buffer()
{
    owner_.leave(this);
}

/* What Gloo's collectives run on. */
class Group final : public gloo::Context
{
  public:
    Group(const std::shared_ptr<tcp::Device> &device, const std::shared_ptr<::Context> &context)
        : gloo::Context(context->rank, context->size)
    {
        setTimeout(context->getTimeout());
        device_ = device;
        transportContext_ = context;
    }
};

} // namespace

struct gloo_engine {
    std::shared_ptr<Context> context;
    std::shared_ptr<Group> group;
};

namespace
{

/* Signals are not for Gloo's thread, and SIGPIPE of a broken connection is not for the program. */
class SignalsBlocked
{
  public:
    SignalsBlocked()
    {
        sigset_t all;
        sigfillset(&all);
        pthread_sigmask(SIG_SETMASK, &all, &before_);
    }
    ~SignalsBlocked()
    {
        pthread_sigmask(SIG_SETMASK, &before_, nullptr);
    }

  private:
    sigset_t before_;
};

/* Its address matters only for the moment in which a new pair listens: loopback, where there is one. */
std::shared_ptr<tcp::Device> make_device(const char *address)
{
    const SignalsBlocked blocked;
    try {
        return std::make_shared<tcp::Device>(tcp::CreateDeviceAttr(tcp::attr("127.0.0.1")));
    } catch (const std::exception &) {
        return std::make_shared<tcp::Device>(tcp::CreateDeviceAttr(tcp::attr(address)));
    }
}

/* Without the place in Gloo's source that its messages begin with. */
void tell(const std::exception &e, char *text, size_t size)
{
    const char *what = e.what(), *end = what[0] == '[' ? strstr(what, "] ") : nullptr;
    snprintf(text, size, "%s", end != nullptr ? end + 2 : what);
}

template <typename T> void allreduce(const std::shared_ptr<Group> &group, const gloo_call_t &call)
{
    const size_t bytes = call.count * sizeof(T);
    gloo::AllreduceOptions options(group);
    options.setTag(call.tag);
    options.setInput<T>(group->createUnboundBuffer(const_cast<void *>(call.in), bytes));
    options.setOutput<T>(group->createUnboundBuffer(call.out, bytes));
    options.setReduceFunction([&call](void *to, const void *a, const void *b, size_t n) {
        if (to != a) memcpy(to, a, n * sizeof(T));
        call.combine(call.context, to, b, n);
    });
    gloo::allreduce(options);
}

template <typename T> void allgather(const std::shared_ptr<Group> &group, const gloo_call_t &call)
{
    const std::vector<size_t> parts(call.parts, call.parts + group->size);
    gloo::AllgathervOptions options(group);
    options.setTag(call.tag);
    options.setInput<T>(
        group->createUnboundBuffer(const_cast<void *>(call.in), parts[group->rank] * sizeof(T)));
    options.setOutput<T>(group->createUnboundBuffer(call.out, call.count * sizeof(T)), parts);
    gloo::allgatherv(options);
}

template <typename T> void broadcast(const std::shared_ptr<Group> &group, const gloo_call_t &call)
{
    gloo::BroadcastOptions options(group);
    options.setTag(call.tag);
    options.setRoot(static_cast<int>(call.root));
    options.setOutput<T>(group->createUnboundBuffer(call.out, call.count * sizeof(T)));
    gloo::broadcast(options);
}

void barrier(const std::shared_ptr<Group> &group, const gloo_call_t &call)
{
    gloo::BarrierOptions options(group);
    options.setTag(call.tag);
    gloo::barrier(options);
}

template <typename T> void run_sized(const std::shared_ptr<Group> &group, const gloo_call_t &call)
{
    if (call.operation == GLOO_ALLREDUCE) allreduce<T>(group, call);
    if (call.operation == GLOO_ALLGATHER) allgather<T>(group, call);
    if (call.operation == GLOO_BROADCAST) broadcast<T>(group, call);
}

void run_any(const std::shared_ptr<Group> &group, const gloo_call_t &call)
{
    if (call.operation == GLOO_BARRIER)
        barrier(group, call);
    else if (call.element_size == 1)
        run_sized<uint8_t>(group, call);
    else if (call.element_size == 2)
        run_sized<uint16_t>(group, call);
    else if (call.element_size == 4)
        run_sized<uint32_t>(group, call);
    else if (call.element_size == 8)
        run_sized<uint64_t>(group, call);
    else
        throw std::runtime_error("no such element");
}

gloo_engine_t *engine_open(uint32_t rank, uint32_t world, const int *sockets, const char *address,
                           int64_t patience_ms, char *text, size_t size)
{
    try {
        const auto device = make_device(address);
        const auto context =
            std::make_shared<Context>(device, static_cast<int>(rank), static_cast<int>(world), sockets);
        context->setTimeout(milliseconds(patience_ms));
        for (int peer = 0; peer < static_cast<int>(world); peer++)
            if (peer != static_cast<int>(rank)) context->createPair(peer);
        auto engine = std::make_unique<gloo_engine>();
        engine->context = context;
        engine->group = std::make_shared<Group>(device, context);
        return engine.release();
    } catch (const std::exception &e) {
        tell(e, text, size);
        return nullptr;
    }
}

int engine_run(gloo_engine_t *engine, const gloo_call_t *call, gloo_fault_t *fault)
{
    try {
        if (engine->context->aborted()) throw gloo::IoException("aborted");
        run_any(engine->group, *call);
        return 0;
    } catch (const std::exception &e) {
        /* After its own timeout Gloo closes all its connections: that is no sign of who is at fault. */
        const bool late = strstr(e.what(), "Timed out") != nullptr;
        fault->rank = late ? -1 : engine->context->first_broken();
        tell(e, fault->text, sizeof fault->text);
        return -1;
    }
}

void engine_abort(gloo_engine_t *engine)
{
    engine->context->abort();
}

void engine_traffic(gloo_engine_t *engine, uint64_t *sent, uint64_t *received)
{
    *sent = *received = 0;
    engine->context->each_pair([&](const Pair &pair) { pair.count(*sent, *received); });
}

void engine_close(gloo_engine_t *engine)
{
    engine->context->each_pair([](Pair &pair) { pair.retire(); });
    delete engine;
}

#define TEXT_OF(x)  #x
#define NUMBER(x)   TEXT_OF(x)
#define GLOO_NUMBER NUMBER(GLOO_VERSION_MAJOR) "." NUMBER(GLOO_VERSION_MINOR) "." NUMBER(GLOO_VERSION_PATCH)

} // namespace

extern "C" __attribute__((visibility("default"))) const gloo_shim_t *inspan_gloo_shim(void);

const gloo_shim_t *inspan_gloo_shim(void)
{
    static const gloo_shim_t shim = {GLOO_SHIM_ABI, GLOO_NUMBER,    engine_open, engine_run,
                                     engine_abort,  engine_traffic, engine_close};
    return &shim;
}
