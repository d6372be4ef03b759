// The threads that work on one op, as its kernel sees them: pieces of work, of which each thread takes the next.
// Apart from the pool so that kernels, which are compiled once for each level of CPU, share no inline code with it.
#pragma once

#include "abi.h"

namespace pilotlight {

class Team {
public:
    // For how finely work is cut; nothing that is computed depends on it.
    virtual int threads() const = 0;

    // Calls work(piece, thread) for each piece below `count`, in any order and on any thread; returns when all are
    // done. What a piece computes must not depend on the thread, which is only the place of its scratch.
    template <class Work>
    void each(int count, const Work& work) {
        run(
            count,
            [](const void* context, int piece, int thread) { (*static_cast<const Work*>(context))(piece, thread); },
            &work);
    }

protected:
    using Piece = void (*)(const void* context, int piece, int thread);

    ~Team() = default;
    virtual void run(int count, Piece piece, const void* context) = 0;
};

}  // namespace pilotlight
