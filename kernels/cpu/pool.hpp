// The resident threads: they sleep between runs, and within a run they wait for the next phase of work awake.
// Apart from the ops because what these compute does not depend on how many threads there are.
//
// The thread that runs a program is the leader: it alone walks through the ops. For each phase it publishes what a
// piece of work is and how many there are; then every thread, the leader too, claims one piece after the other. A
// phase ends when its pieces are done, not when its threads are: one that the system holds back without a piece delays
// nobody.
//
//     claim_    [phase : 32 | pieces : 16 | next piece : 16]   compare-and-swap takes the next piece of that very phase
//     left_     pieces of the phase that are not done yet
#pragma once

#include <pthread.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "team.hpp"

namespace pilotlight {

class Pool final : public Team {
public:
    // Null where a thread cannot be started.
    static std::unique_ptr<Pool> start(int threads);
    ~Pool();

    Pool(const Pool&) = delete;
    Pool& operator=(const Pool&) = delete;

    int threads() const override { return threads_; }

    // What is between the two is a run: the other threads are awake.
    void begin_run();
    void end_run();

private:
    struct Worker {
        Pool* pool;
        int thread;
        pthread_t handle;
    };

    explicit Pool(int threads) : threads_(threads) {}

    void run(int count, Piece piece, const void* context) override;
    void phase(int first, int count, Piece piece, const void* context);
    bool work(int thread);
    static void* serve_worker(void* worker);
    void serve(int thread);

    const int threads_;
    std::vector<Worker> workers_;

    alignas(64) std::atomic<uint64_t> claim_{0};
    std::atomic<Piece> piece_{nullptr};
    std::atomic<const void*> context_{nullptr};
    std::atomic<int> first_{0};
    alignas(64) std::atomic<uint32_t> left_{0};
    alignas(64) std::atomic<uint32_t> runs_{0};  // begun; odd while one is under way: what sleepers wait on
    std::atomic<bool> closing_{false};
};

}  // namespace pilotlight
