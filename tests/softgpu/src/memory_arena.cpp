// Allocates device memory and copies between it and the host. See the header for the layout.
#include "memory_arena.hpp"

#include <sys/mman.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <shared_mutex>

namespace soft {

Reservation reservations[kMaxDevices];

namespace {

constexpr uint64_t kGap = 1 << 20;          // an index that is off by a row or two must not reach a neighbour
constexpr uint64_t kFirst = 1 << 30;        // of a device's addresses: small offsets from its base are nothing
constexpr uint64_t kAlignment = 256;

struct Device {
  std::map<uint64_t, Allocation> live, freed;  // by base; a freed one stays until its addresses are used again
  uint64_t next = kFirst;                      // offset where free addresses begin
  uint64_t used = 0, made = 0;
  bool peers[kMaxDevices] = {};
};

struct Expected { uint64_t address, bytes; };

std::shared_mutex mutex;
std::mutex poison_mutex;
Device devices[kMaxDevices];
std::vector<Expected> expected_zero;
std::atomic<uint64_t> generation{1};

uint64_t round_up(uint64_t value, uint64_t to) { return (value + to - 1) / to * to; }

uint8_t* reserve(uint64_t bytes) {
  void* at = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (at == MAP_FAILED) {
    std::fprintf(stderr, "softgpu: the host refuses to reserve %llu bytes of address space\n",
                 static_cast<unsigned long long>(bytes));
    std::abort();
  }
  madvise(at, bytes, MADV_NOHUGEPAGE);  // a huge page would cost 2 MB for one touched byte
  return static_cast<uint8_t*>(at);
}

// Gives the pages of the half-open range back to the host; partial pages at its ends are kept as they are.
void drop_pages(uint8_t* reservation, uint64_t begin, uint64_t end) {
  begin = round_up(begin, kPageBytes);
  end = end / kPageBytes * kPageBytes;
  if (begin < end) madvise(reservation + begin, end - begin, MADV_DONTNEED);
}

uint64_t place(const Device& device, uint64_t offset) {
  return round_up(offset, kPageBytes) + kAlignment * (2 * (device.made % 7) + 1);
}

// First hole that holds `bytes` with a gap behind them; 0: none. Asked once the terabyte has been walked through.
uint64_t find_hole(const Device& device, uint64_t first, uint64_t bytes) {
  uint64_t at = place(device, kFirst);
  for (const auto& [base, allocation] : device.live) {
    if (at + bytes + kGap <= base - first) return at;
    at = place(device, base - first + allocation.bytes + kGap);
  }
  return at + bytes + kGap <= kDeviceStride ? at : 0;
}

const Allocation* find_in(const std::map<uint64_t, Allocation>& map, uint64_t address) {
  auto at = map.upper_bound(address);
  if (at == map.begin()) return nullptr;
  --at;
  return address < at->first + at->second.bytes ? &at->second : nullptr;
}

const Allocation* find_live(uint64_t address) {
  return is_device_address(address) ? find_in(devices[device_of(address)].live, address) : nullptr;
}

bool holds(uint64_t address, uint64_t bytes) {
  const std::shared_lock lock(mutex);
  const Allocation* allocation = find_live(address);
  return allocation && bytes <= allocation->base + allocation->bytes - address;
}

std::string name_of(const Allocation& allocation) {
  return "'" + allocation.tag + "' (" + hex_address(allocation.base) + ", " + std::to_string(allocation.bytes) +
         " bytes)";
}

// Pages that are wholly overwritten need no poison first.
uint8_t* bytes_to_write(uint64_t address, uint64_t bytes) {
  Reservation& of = reservations[device_of(address)];
  const uint64_t offset = address & (kDeviceStride - 1), end = offset + bytes;
  if (offset % kPageBytes) host_bytes(address, 1);
  if (end % kPageBytes) host_bytes(address + bytes - 1, 1);
  for (uint64_t page = round_up(offset, kPageBytes) >> kPageShift; page < end >> kPageShift; ++page)
    __atomic_store_n(&of.touched[page], 1, __ATOMIC_RELEASE);
  return of.bytes + offset;
}

}  // namespace

void poison_page(Reservation& of, uint64_t page) {
  const std::lock_guard lock(poison_mutex);
  if (of.touched[page]) return;
  std::memset(of.bytes + (page << kPageShift), kPoison, kPageBytes);
  __atomic_store_n(&of.touched[page], 1, __ATOMIC_RELEASE);
}

uint64_t allocate(int device, uint64_t bytes, const std::string& tag) {
  const std::unique_lock lock(mutex);
  Device& at = devices[device];
  const uint64_t charged = round_up(bytes, kAlignment);
  const uint64_t most = config().memory_bytes - std::min(config().memory_bytes, at.used);
  if (bytes == 0 || bytes > most || charged > most) return 0;
  if (!reservations[device].bytes)
    reservations[device] = {reserve(kDeviceStride), reserve(kDeviceStride >> kPageShift)};
  const uint64_t first = kDeviceBase + device * kDeviceStride;
  uint64_t offset = place(at, at.next);
  if (offset + bytes + kGap > kDeviceStride) offset = find_hole(at, first, bytes);
  if (!offset) return 0;
  at.next = std::max(at.next, offset + bytes + kGap);
  ++at.made;
  at.used += charged;
  const uint64_t base = first + offset;
  for (auto old = at.freed.lower_bound(base); old != at.freed.end() && old->first < base + bytes;)
    old = at.freed.erase(old);
  at.live[base] = {base, bytes, device, tag};
  generation.fetch_add(1, std::memory_order_release);
  return base;
}

bool release(uint64_t base) {
  const std::unique_lock lock(mutex);
  if (!is_device_address(base)) return false;
  Device& at = devices[device_of(base)];
  const auto found = at.live.find(base);
  if (found == at.live.end()) return false;
  const Allocation allocation = found->second;
  at.live.erase(found);
  at.freed[base] = allocation;
  at.used -= round_up(allocation.bytes, kAlignment);
  generation.fetch_add(1, std::memory_order_release);
  // An allocation has its pages to itself, so all of them can go.
  Reservation& of = reservations[allocation.device];
  const uint64_t begin = (base & (kDeviceStride - 1)) / kPageBytes * kPageBytes;
  const uint64_t end = round_up((base & (kDeviceStride - 1)) + allocation.bytes, kPageBytes);
  drop_pages(of.bytes, begin, end);
  const uint64_t first_page = begin >> kPageShift, last_page = end >> kPageShift;
  const uint64_t whole = std::min(round_up(first_page, kPageBytes), last_page);
  std::memset(of.touched + first_page, 0, whole - first_page);
  drop_pages(of.touched, whole, last_page);
  const uint64_t tail = std::max(last_page / kPageBytes * kPageBytes, whole);
  std::memset(of.touched + tail, 0, last_page - tail);
  std::erase_if(expected_zero, [&](const Expected& range) {
    return range.address >= base && range.address < base + allocation.bytes;
  });
  return true;
}

const Allocation* find_allocation(uint64_t address) {
  const std::shared_lock lock(mutex);
  return find_live(address);
}

uint64_t free_bytes(int device) {
  const std::shared_lock lock(mutex);
  return config().memory_bytes - std::min(config().memory_bytes, devices[device].used);
}

bool read_device(uint64_t address, void* out, uint64_t bytes) {
  if (bytes == 0) return true;
  if (!holds(address, bytes)) return false;
  std::memcpy(out, host_bytes(address, bytes), bytes);
  return true;
}

bool write_device(uint64_t address, const void* from, uint64_t bytes) {
  if (bytes == 0) return true;
  if (!holds(address, bytes)) return false;
  std::memcpy(bytes_to_write(address, bytes), from, bytes);
  return true;
}

bool copy_device(uint64_t to, uint64_t from, uint64_t bytes) {
  if (bytes == 0) return true;
  if (!holds(to, bytes) || !holds(from, bytes)) return false;
  const uint8_t* source = host_bytes(from, bytes);
  std::memmove(bytes_to_write(to, bytes), source, bytes);
  return true;
}

bool fill_device(uint64_t address, uint32_t value, int element_bytes, uint64_t count) {
  const uint64_t bytes = count * uint64_t(element_bytes);
  if (bytes == 0) return true;
  if (!holds(address, bytes)) return false;
  uint8_t* to = bytes_to_write(address, bytes);
  if (element_bytes == 1) {
    std::memset(to, int(value & 0xFF), bytes);
  } else {
    for (uint64_t i = 0; i < count; ++i) std::memcpy(to + i * element_bytes, &value, element_bytes);
  }
  return true;
}

uint64_t hash_device(uint64_t address, uint64_t bytes) {
  uint64_t hash = 0xcbf29ce484222325ull ^ bytes;
  if (bytes == 0 || !holds(address, bytes)) return hash;
  const uint8_t* from = host_bytes(address, bytes);
  uint64_t at = 0;
  for (; at + 8 <= bytes; at += 8) {
    uint64_t word;
    std::memcpy(&word, from + at, 8);
    hash = (hash ^ word) * 0x9e3779b97f4a7c15ull;
    hash ^= hash >> 29;
  }
  for (; at < bytes; ++at) hash = (hash ^ from[at]) * 0x100000001b3ull;
  return hash;
}

void reset_memory() {
  const std::unique_lock lock(mutex);
  for (int device = 0; device < kMaxDevices; ++device) {
    devices[device] = Device();
    Reservation& of = reservations[device];
    if (!of.bytes) continue;
    munmap(of.bytes, kDeviceStride);
    munmap(of.touched, kDeviceStride >> kPageShift);
    of = Reservation();
  }
  expected_zero.clear();
  generation.fetch_add(1, std::memory_order_release);
}

void set_peer_access(int device, int peer, bool enabled) {
  const std::unique_lock lock(mutex);
  devices[device].peers[peer] = enabled;
  generation.fetch_add(1, std::memory_order_release);
}

bool peer_access_enabled(int device, int peer) {
  const std::shared_lock lock(mutex);
  return devices[device].peers[peer];
}

bool find_window(uint64_t address, Window& window) {
  const std::shared_lock lock(mutex);
  const Allocation* allocation = find_live(address);
  if (allocation) window = {allocation->base, allocation->base + allocation->bytes, allocation->device};
  return allocation != nullptr;
}

uint64_t allocation_generation() { return generation.load(std::memory_order_acquire); }

Misplaced explain_misplaced(uint64_t address, uint64_t bytes) {
  const std::string access = std::to_string(bytes) + " bytes at " + hex_address(address);
  if (!is_device_address(address)) return {"out-of-bounds", access + ": no device address"};
  const std::shared_lock lock(mutex);
  const Device& device = devices[device_of(address)];
  if (const Allocation* freed = find_in(device.freed, address))
    return {"use-after-free", access + ": " + std::to_string(address - freed->base) + " bytes into freed " +
                                  name_of(*freed)};
  const Allocation* nearest = nullptr;
  uint64_t distance = ~0ull;
  std::string place;
  auto after = device.live.upper_bound(address);
  if (after != device.live.begin()) {
    nearest = &std::prev(after)->second;
    const uint64_t end = nearest->base + nearest->bytes;
    distance = address < end ? 0 : address - end;
    place = address < end ? "straddles the end of " : std::to_string(distance) + " bytes past the end of ";
  }
  if (after != device.live.end() && after->first - address < distance) {
    nearest = &after->second;
    place = std::to_string(after->first - address) + " bytes before ";
  }
  if (!nearest) return {"out-of-bounds", access + ": the device has no allocation"};
  return {"out-of-bounds", access + ": " + place + name_of(*nearest)};
}

void expect_zero(uint64_t address, uint64_t bytes) {
  const std::unique_lock lock(mutex);
  expected_zero.push_back({address, bytes});
}

std::vector<std::string> nonzero_counters() {
  std::vector<Expected> ranges;
  {
    const std::shared_lock lock(mutex);
    ranges = expected_zero;
  }
  std::vector<std::string> out;
  for (const Expected& range : ranges) {
    std::vector<uint8_t> bytes(range.bytes);
    if (!read_device(range.address, bytes.data(), range.bytes)) continue;
    for (uint64_t i = 0; i < range.bytes; ++i) {
      if (!bytes[i]) continue;
      out.push_back("byte " + std::to_string(i) + " of the counters at " + hex_address(range.address) + " holds " +
                    std::to_string(bytes[i]) + " when the grid ends");
      break;
    }
  }
  return out;
}

std::string hex_address(uint64_t address) {
  char text[20];
  std::snprintf(text, sizeof text, "0x%llx", static_cast<unsigned long long>(address));
  return text;
}

}  // namespace soft
