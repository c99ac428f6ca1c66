// Instructions for a CTA and a cluster: shared memory, its two proxies, and barriers of threads.
#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <cstring>

#include "machine.h"
#include "wgmma.h"

namespace emulator {

Settings settings;
std::mt19937 random_bits;
long num_failures = 0;
Thread* current = nullptr;
std::vector<std::unique_ptr<Cta>> cluster;
ThreadBarrier cluster_barrier;
std::vector<std::pair<const char*, size_t>> readable;

void Fail(const char* format, ...) {
  constexpr int kPrintedFailures = 5;
  if (num_failures++ >= kPrintedFailures) {
    return;
  }
  if (current != nullptr) {
    std::printf("  CTA %u, thread %d: ", current->cta->block.x, current->index);
  }
  va_list arguments;
  va_start(arguments, format);
  std::vprintf(format, arguments);
  va_end(arguments);
  std::printf("\n");
  std::fflush(stdout);
}

void CheckRead(const void* from, size_t num_bytes) {
  const char* at = static_cast<const char*>(from);
  for (const auto& [data, size] : readable) {
    if (at >= data && at + num_bytes <= data + size) {
      return;
    }
  }
  Fail("%zu bytes at %p are not all in one operand", num_bytes, from);
}

uint32_t SharedAddress(const void* smem) {
  const ptrdiff_t offset = static_cast<const char*>(smem) - current->cta->smem;
  if (offset < 0 || offset > current->cta->smem_bytes) {
    Fail("a pointer is not into shared memory");
    return kSmemAddress;
  }
  return kSmemAddress + static_cast<uint32_t>(offset);
}

char* SharedMemory(Cta& cta, uint32_t address, int num_bytes, const char* instruction) {
  const int64_t offset = static_cast<int64_t>(address) - kSmemAddress;
  if (offset < 0 || offset + num_bytes > cta.smem_bytes) {
    Fail("%s: address %u is not in shared memory", instruction, address);
    return nullptr;
  }
  return cta.smem + offset;
}

void ReadAsync(Cta& cta, uint32_t address, void* to, int num_bytes, const char* instruction) {
  const char* written = SharedMemory(cta, address, num_bytes, instruction);
  if (written == nullptr) {
    std::memset(to, 0, num_bytes);
    return;
  }
  const char* seen = cta.seen_by_async.data() + (written - cta.smem);
  if (std::memcmp(seen, written, num_bytes) != 0) {
    Fail("%s reads what a thread wrote without fence.proxy.async", instruction);
  }
  std::memcpy(to, seen, num_bytes);
}

void WriteAsync(Cta& cta, uint32_t address, const void* from, int num_bytes, const char* what) {
  char* to = SharedMemory(cta, address, num_bytes, what);
  if (to != nullptr) {
    std::memcpy(to, from, num_bytes);
    std::memcpy(cta.seen_by_async.data() + (to - cta.smem), from, num_bytes);
  }
}

// PTX ISA, "membar / fence": a proxy fence orders accesses of threads and of asynchronous
// instructions.
void FenceAsync() {
  constexpr int kBlock = 1024;
  Cta& cta = *current->cta;
  for (int at = 0; at < cta.smem_bytes; at += kBlock) {
    const int bytes = std::min(kBlock, cta.smem_bytes - at);
    if (std::memcmp(cta.seen_by_async.data() + at, cta.smem + at, bytes) != 0) {
      std::memcpy(cta.seen_by_async.data() + at, cta.smem + at, bytes);
    }
  }
}

void MeetWarp(const char* instruction) {
  Cta& cta = *current->cta;
  const int warp_index = current->index / kWarpSize;
  Warp& warp = *cta.warps[warp_index];
  if (warp.num_arrived == 0) {
    warp.instruction = instruction;
  } else if (std::strcmp(warp.instruction, instruction) != 0) {
    Fail("lanes of a warp are in %s and in %s", warp.instruction, instruction);
  }
  if (++warp.num_arrived < kWarpSize) {
    Wait(instruction);
    return;
  }
  warp.num_arrived = 0;
  ++warp.num_meetings;
  for (int lane = 0; lane < kWarpSize; ++lane) {
    cta.threads[warp_index * kWarpSize + lane]->waits_in = nullptr;
  }
}

namespace {

// The last thread does not go on before the others of its warp either.
void Sync(ThreadBarrier& barrier, int num_threads, const char* instruction) {
  current->waits_in = instruction;
  barrier.waiting.push_back(current);
  Arrive(barrier, num_threads, instruction);
  Yield();
}

}  // namespace

void Arrive(ThreadBarrier& barrier, int num_threads, const char* instruction) {
  if (barrier.num_arrived > 0 && barrier.num_expected != num_threads) {
    Fail("%s: a barrier of %d threads and of %d", instruction, barrier.num_expected, num_threads);
  }
  barrier.num_expected = num_threads;
  if (++barrier.num_arrived == num_threads) {
    barrier.num_arrived = 0;
    WakeAll(barrier.waiting);
  }
}

// PTX ISA, "bar / barrier": when so many threads have arrived, those that wait go on, and the
// barrier can be used again.
void ArriveNamedBarrier(int barrier, int num_threads) {
  Arrive(current->cta->barriers.at(barrier), num_threads, "bar.arrive");
}
void SyncNamedBarrier(int barrier, int num_threads) {
  Sync(current->cta->barriers.at(barrier), num_threads, "bar.sync");
}
void SyncCta() { SyncNamedBarrier(0, static_cast<int>(current->cta->threads.size())); }

// PTX ISA, "barrier.cluster": waits for all threads of the cluster.
void SyncCluster() {
  const size_t num_threads = cluster.size() * current->cta->threads.size();
  Sync(cluster_barrier, static_cast<int>(num_threads), "barrier.cluster");
}

}  // namespace emulator
