// Sizes on which the kernels agree with the code that checks an op and plans its scratch memory.
#pragma once

namespace pilotlight {

constexpr int kMaxHeadDim = 256;
constexpr int kSplit = 512;  // positions of a context in one piece of attention's work
constexpr int kMaximaOf = 64;  // logits in a group of which only the maximum is looked at first

}  // namespace pilotlight
