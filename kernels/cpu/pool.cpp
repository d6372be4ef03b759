// The pool of pool.hpp. All that its threads share are atomics; the order of each access is argued beside it.
#include "pool.hpp"

#include <sched.h>

#include <algorithm>

namespace pilotlight {
namespace {

constexpr int kMostPieces = 0xffff;  // of a phase
// Within a run the next phase is microseconds away, so waiting costs less than sleeping does. Yielding now and then
// lets other processes in where there are fewer cores than threads.
constexpr int kSpins = 200;  // pauses, about 40 ns each, before a yield
constexpr int kSpinsAfterRun = 100;
constexpr size_t kStackBytes = 1 << 20;  // attention takes 160 KB; some C libraries give a thread 128

void pause() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("isb");
#endif
}

}  // namespace

std::unique_ptr<Pool> Pool::start(int threads) {
    std::unique_ptr<Pool> pool(new Pool(std::max(threads, 1)));
    pool->workers_.reserve(static_cast<size_t>(pool->threads_));
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, kStackBytes);
    for (int thread = 1; thread < threads; ++thread) {
        pool->workers_.push_back({pool.get(), thread, {}});
        Worker& worker = pool->workers_.back();
        if (pthread_create(&worker.handle, &attributes, serve_worker, &worker) != 0) {
            pool->workers_.pop_back();
            pool.reset();
            break;
        }
    }
    pthread_attr_destroy(&attributes);
    return pool;
}

void* Pool::serve_worker(void* worker) {
    const auto& self = *static_cast<const Worker*>(worker);
    self.pool->serve(self.thread);
    return nullptr;
}

Pool::~Pool() {
    closing_.store(true);
    runs_.fetch_add(2);
    runs_.notify_all();
    for (const Worker& worker : workers_) {
        pthread_join(worker.handle, nullptr);
    }
}

void Pool::begin_run() {
    if (threads_ > 1) {
        runs_.fetch_add(1);
        runs_.notify_all();
    }
}

void Pool::end_run() {
    if (threads_ > 1) {
        runs_.fetch_add(1);
    }
}

void Pool::run(int count, Piece piece, const void* context) {
    if (threads_ == 1 || count <= 1) {
        for (int index = 0; index < count; ++index) {
            piece(context, index, 0);
        }
        return;
    }
    for (int first = 0; first < count; first += kMostPieces) {
        phase(first, std::min(count - first, kMostPieces), piece, context);
    }
}

void Pool::phase(int first, int count, Piece piece, const void* context) {
    // All pieces of the last phase are done, so no thread uses what it read of these until the release below.
    piece_.store(piece, std::memory_order_relaxed);
    context_.store(context, std::memory_order_relaxed);
    first_.store(first, std::memory_order_relaxed);
    left_.store(static_cast<uint32_t>(count), std::memory_order_relaxed);
    const uint64_t number = (claim_.load(std::memory_order_relaxed) >> 32) + 1;
    claim_.store(number << 32 | static_cast<uint64_t>(count) << 16, std::memory_order_release);
    while (work(0)) {
    }
    // Acquire: what the pieces wrote is seen by the leader, and through the next claim by all.
    for (int spins = 1; left_.load(std::memory_order_acquire) != 0; ++spins) {
        pause();
        if (spins % kSpins == 0) {
            sched_yield();
        }
    }
}

// Does one piece, if one is left.
bool Pool::work(int thread) {
    uint64_t claim = claim_.load(std::memory_order_acquire);
    for (;;) {
        const uint64_t next = claim & 0xffff;
        if (next == (claim >> 16 & 0xffff)) {
            return false;
        }
        // These may be a later phase's. Then `claim` is over, the exchange fails, and they are read again.
        const Piece piece = piece_.load(std::memory_order_relaxed);
        const void* const context = context_.load(std::memory_order_relaxed);
        const int first = first_.load(std::memory_order_relaxed);
        if (claim_.compare_exchange_weak(claim, claim + 1, std::memory_order_acq_rel, std::memory_order_acquire)) {
            piece(context, first + static_cast<int>(next), thread);
            left_.fetch_sub(1, std::memory_order_release);
            return true;
        }
    }
}

void Pool::serve(int thread) {
    uint32_t seen = 0;
    for (;;) {
        runs_.wait(seen);
        for (int spins = 1; seen % 2 == 1 || spins <= kSpinsAfterRun; ++spins) {
            while (work(thread)) {
                spins = 0;
            }
            pause();
            if (spins % kSpins == 0) {
                sched_yield();
            }
            seen = runs_.load();
        }
        if (closing_.load()) {  // set before `runs_` changes, and so seen by whoever would wait for a later change
            return;
        }
    }
}

}  // namespace pilotlight
