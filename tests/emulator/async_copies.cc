// See async_copies.h. Global memory is accessed as a kernel on the host would: buffers have pages
// around them that nobody can access.
#include "async_copies.h"

#include <algorithm>
#include <cstring>

#include "machine.h"
#include "mbarrier.h"
#include "tensor_map.h"

namespace emulator {

namespace {

constexpr int kChunkBytes = 16;

struct PendingLoad {
  const TensorMap* map;
  int origin[3];
  Cta* cta;
  uint32_t address;
  uint32_t mbarrier;
};
std::vector<PendingLoad> pending_loads;

int BoxBytes(const TensorMap& map) { return map.box[0] * map.box[1] * map.box[2] * map.item_bytes; }

// PTX ISA, "Swizzling modes": of an address, bits 4 to 6 are permuted by bits 7 to 9.
uint32_t Swizzled(uint32_t address) { return address ^ (address >> 7 & 7) << 4; }

// Calls `move(address, global, bytes)` for each chunk of a box; of its bytes, so many lie inside
// the tensor.
template <typename Move>
void ForEachChunk(const TensorMap& map, const int (&origin)[3], uint32_t address,
                  const Move& move) {
  const int chunk_items = kChunkBytes / map.item_bytes;
  for (int matrix = 0; matrix < map.box[2]; ++matrix) {
    for (int row = 0; row < map.box[1]; ++row) {
      for (int column = 0; column < map.box[0]; column += chunk_items) {
        const int64_t at[3] = {int64_t{origin[0]} + column, int64_t{origin[1]} + row,
                               int64_t{origin[2]} + matrix};
        const bool inside =
            at[0] >= 0 && at[1] >= 0 && at[2] >= 0 && at[1] < map.sizes[1] && at[2] < map.sizes[2];
        const int64_t left = std::min<int64_t>(chunk_items, map.sizes[0] - at[0]);
        const int bytes = inside && left > 0 ? static_cast<int>(left) * map.item_bytes : 0;
        char* global =
            map.data + at[2] * map.strides[1] + at[1] * map.strides[0] + at[0] * map.item_bytes;
        const int place = (matrix * map.box[1] + row) * map.box[0] + column;
        move(Swizzled(address + place * map.item_bytes), global, bytes);
      }
    }
  }
}

void CheckBox(const TensorMap& map, const int (&origin)[3], uint32_t address) {
  // PTX ISA, "Tensor copy restrictions": shared memory at a multiple of 128 bytes.
  if (address % 128 != 0) {
    Fail("cp.async.bulk.tensor: shared memory at address %u", address);
  }
  // An illegal instruction on an H200 (parts/realign.cuh).
  if (origin[0] * map.item_bytes % kChunkBytes != 0) {
    Fail("cp.async.bulk.tensor: column %d is not at a multiple of 16 bytes", origin[0]);
  }
}

void DoLoad(const PendingLoad& load) {
  if (HasEnded(*load.cta)) {
    Fail("a load of TMA comes to a CTA that has ended");
    return;
  }
  ForEachChunk(*load.map, load.origin, load.address, [&](uint32_t to, const char* from, int bytes) {
    char chunk[kChunkBytes] = {};
    std::memcpy(chunk, from, bytes);
    WriteAsync(*load.cta, to, chunk, kChunkBytes, "a load of TMA");
  });
  CompleteBytes(*load.cta, load.mbarrier, BoxBytes(*load.map));
}

}  // namespace

// A box that is stored: first shared memory is read, then global memory is written.
struct StoredBox {
  const TensorMap* map;
  int origin[3];
  Cta* cta;
  uint32_t address;
  std::vector<char> bytes;
};

struct StoreGroup {
  std::vector<StoredBox> boxes;
  bool is_read = false;
  bool is_written = false;
};

namespace {

void DoCopies(std::vector<AsyncCopy>& copies) {
  for (const AsyncCopy& copy : copies) {
    std::memset(copy.to, 0, copy.size);
    std::memcpy(copy.to, copy.from, copy.bytes_read);
  }
  copies.clear();
}

void ReadGroup(StoreGroup& group) {
  for (StoredBox& box : group.boxes) {
    ForEachChunk(*box.map, box.origin, box.address, [&](uint32_t from, char*, int) {
      char chunk[kChunkBytes];
      ReadAsync(*box.cta, from, chunk, kChunkBytes, "a store of TMA");
      box.bytes.insert(box.bytes.end(), chunk, chunk + kChunkBytes);
    });
  }
  group.is_read = true;
}

void WriteGroup(StoreGroup& group) {
  for (StoredBox& box : group.boxes) {
    const char* from = box.bytes.data();
    ForEachChunk(*box.map, box.origin, box.address, [&](uint32_t, char* to, int bytes) {
      std::memcpy(to, from, bytes);
      from += kChunkBytes;
    });
  }
  group.is_written = true;
}

// Groups that are complete but for the open one, at the end, and the newest `pending`.
size_t NumToWaitFor(const Thread& thread, int pending) {
  const size_t committed = thread.store_groups.empty() ? 0 : thread.store_groups.size() - 1;
  return committed - std::min<size_t>(committed, pending);
}

StoreGroup& OpenGroup(Thread& thread) {
  if (thread.store_groups.empty()) {
    thread.store_groups.push_back(std::make_shared<StoreGroup>());
  }
  return *thread.store_groups.back();
}

}  // namespace

// PTX ISA, "cp.async": source and destination are aligned to the size.
void CopyAsync(uint32_t address, const void* from, int size, int bytes_read) {
  char* to = SharedMemory(*current->cta, address, size, "cp.async");
  if (address % size != 0 || (reinterpret_cast<uintptr_t>(from) % size != 0 && bytes_read > 0)) {
    Fail("cp.async of %d bytes: from %p to address %u", size, from, address);
  }
  if (to != nullptr) {
    current->open_copies.push_back({to, from, size, bytes_read});
  }
  const bool at_once = settings.timing == Timing::kAtOnce;
  if (at_once || (settings.timing == Timing::kAtRandom && random_bits() % 8 == 0)) {
    DoCopies(current->open_copies);
  }
}

// PTX ISA, "cp.async.commit_group".
void CommitCopies() {
  current->copy_groups.push_back(std::move(current->open_copies));
  current->open_copies.clear();
}

// PTX ISA, "cp.async.wait_group": waits for all but the newest groups.
void WaitForCopies(int pending) {
  while (static_cast<int>(current->copy_groups.size()) > pending) {
    DoCopies(current->copy_groups.front());
    current->copy_groups.pop_front();
  }
}

// PTX ISA, "cp.async.bulk.tensor": what lies outside of the tensor is zero. With `.multicast` to
// the same place in every CTA, whose barriers at the same place count the bytes.
void LoadBox(const CUtensorMap* map, const int (&origin)[3], uint32_t address, uint32_t mbarrier,
             unsigned cta_mask) {
  const TensorMap* tensor = ReadMap(map);
  if (tensor == nullptr) {
    return;
  }
  CheckBox(*tensor, origin, address);
  for (const auto& cta : cluster) {
    if (cta_mask >> cta->rank & 1) {
      PendingLoad load = {tensor, {origin[0], origin[1], origin[2]}, cta.get(), address, mbarrier};
      if (settings.timing == Timing::kAtOnce) {
        DoLoad(load);
      } else {
        pending_loads.push_back(load);
      }
    }
  }
}

// PTX ISA, "cp.async.bulk.tensor": what lies outside of the tensor is not written.
void StoreBox(const CUtensorMap* map, const int (&origin)[3], uint32_t address) {
  const TensorMap* tensor = ReadMap(map);
  if (tensor == nullptr) {
    return;
  }
  CheckBox(*tensor, origin, address);
  OpenGroup(*current).boxes.push_back(
      {tensor, {origin[0], origin[1], origin[2]}, current->cta, address, {}});
}

// PTX ISA, "cp.async.bulk.commit_group".
void CommitStores() {
  StoreGroup& group = OpenGroup(*current);
  if (settings.timing == Timing::kAtOnce) {
    ReadGroup(group);
    WriteGroup(group);
  }
  current->store_groups.push_back(std::make_shared<StoreGroup>());
}

// PTX ISA, "cp.async.bulk.wait_group".
void WaitForStores(int pending, bool only_read) {
  for (size_t i = 0; i < NumToWaitFor(*current, pending); ++i) {
    StoreGroup& group = *current->store_groups[i];
    if (!group.is_read) {
      ReadGroup(group);
    }
    if (!only_read && !group.is_written) {
      WriteGroup(group);
    }
  }
  while (current->store_groups.size() > 1 && current->store_groups.front()->is_written) {
    current->store_groups.pop_front();
  }
}

bool DoOneLoad() {
  if (pending_loads.empty()) {
    return false;
  }
  const size_t i = random_bits() % pending_loads.size();
  const PendingLoad load = pending_loads[i];
  pending_loads.erase(pending_loads.begin() + i);
  DoLoad(load);
  return true;
}

bool DoOneStore() {
  for (const auto& cta : cluster) {
    for (const auto& thread : cta->threads) {
      for (size_t i = 0; i < NumToWaitFor(*thread, 0); ++i) {
        StoreGroup& group = *thread->store_groups[i];
        if (!group.is_read) {
          ReadGroup(group);
          return true;
        }
        if (!group.is_written) {
          WriteGroup(group);
          return true;
        }
      }
    }
  }
  return false;
}

void EndCopies(Thread& thread, bool check) {
  const bool waits_for_copies = std::any_of(thread.copy_groups.begin(), thread.copy_groups.end(),
                                            [](const auto& group) { return !group.empty(); });
  bool waits_for_stores = false;
  for (const auto& group : thread.store_groups) {
    waits_for_stores |= !group->boxes.empty() && !group->is_read;
  }
  if (check && (waits_for_copies || waits_for_stores)) {
    Fail("thread %d has ended without waiting for its copies", thread.index);
  }
  for (size_t i = 0; i < NumToWaitFor(thread, 0); ++i) {
    StoreGroup& group = *thread.store_groups[i];
    if (group.is_read && !group.is_written) {
      WriteGroup(group);
    }
  }
}

void EndLoads(bool check) {
  if (check && !pending_loads.empty()) {
    Fail("a CTA has ended without waiting for loads of TMA");
  }
  pending_loads.clear();
}

}  // namespace emulator
