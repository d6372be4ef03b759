// Which devices a process sees, and in which order: what CUDA_VISIBLE_DEVICES says when cuInit reads it.
//
// The CUDA programming guide, "CUDA environment variables": not set, all; empty, none; else a comma-separated list of
// indices as nvidia-smi counts (0, 1 ...) or of UUIDs (GPU-8932f937-..., or as many of its first digits as tell it from
// the others), enumerated in its order. What is invalid ends the list; what came before it is visible. Of MIG devices
// (MIG-<UUID>, since driver 470) a process sees one, the first (MIG user guide, "Device enumeration").
#pragma once
#include <array>
#include <cstdint>
#include <string>
#include <vector>

namespace soft {

using UuidBytes = std::array<uint8_t, 16>;

UuidBytes card_uuid(int card);   // a card by its number, from 0
UuidBytes slice_uuid(int card);  // its MIG device: with the knob `mig` each card is cut, and one slice of it is ours
std::string uuid_text(const char* prefix, const UuidBytes& uuid);  // "GPU-8932f937-d72c-4106-c12f-20bd9faed9f6"

std::vector<int> visible_cards();  // by ordinal
}  // namespace soft
