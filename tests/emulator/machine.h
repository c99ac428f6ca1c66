// A machine that runs CUDA kernels compiled as host C++, and finds what would go wrong on a GPU.
//
// Each CUDA thread is a fiber of the host. The CTAs of a cluster run together, each with its own
// shared memory; clusters run one after another. Headers in include/ take the place of those that
// have instructions in them (ffi/ptx/) and of the CUDA runtime; all other code is that of ffi/.
//
//     file             what it models, after which sections of the PTX ISA
//     grid.cc          threads, and in which order they run
//     cta.cc           shared memory, fence.proxy.async, bar, barrier.cluster
//     async_copies.cc  cp.async, cp.async.bulk.tensor, bulk groups
//     tensor_map.cc    cuTensorMapEncodeTiled, of the CUDA driver API
//     mbarrier.cc      mbarrier
//     wgmma.cc         wgmma: descriptors, groups, registers that belong to the Tensor Cores
//     include/ptx/     ldmatrix, stmatrix, mma, and the names by which kernels call all of this
//
// A failure is an instruction used against its rules, an access outside of buffers, or a deadlock.
// A hazard shows as a wrong result: memory is NaN before it is written; warps are run in several
// orders, and asynchronous work is done at once, as late as waits allow, or at random.
//
// What is not modelled:
//   - time, and caches: hints and prefetches do nothing.
//   - races between instructions of different warps, other than in the orders that are tried: a
//     thread runs until it waits, and what it writes is seen by all threads at once, so missing
//     fences between threads do not show.
//   - lanes of a warp that drift apart between two waits.
//   - who executes fence.proxy.async: whatever the CTA has written before is seen afterwards.
//   - copies and products that are done in parts, other than a product's rows of each warp.
//   - rounding inside of mma and wgmma, and of TMA to TF32: operands are small integers, whose sums
//     are exact.
//   - registers: how many there are, and setmaxnreg.
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

namespace emulator {

inline constexpr int kWarpSize = 32;
inline constexpr int kWarpgroupSize = 128;
// Two halves are a NaN of float32; alone each is one of bfloat16 and of float16.
inline constexpr uint16_t kNan = 0x7FA5;

// When asynchronous work is done, of all the times that are allowed.
enum class Timing { kAtOnce, kLate, kAtRandom };
// Which warp goes on, of those that can: the next one, the first one, the last one, or any.
enum class Order { kInTurns, kFirst, kLast, kAtRandom };

struct Settings {
  Timing timing = Timing::kAtOnce;
  Order order = Order::kInTurns;
  int num_sms = 2;
};
extern Settings settings;
extern std::mt19937 random_bits;

// Reports what would be an error on a GPU; the first few are printed.
__attribute__((format(printf, 1, 2))) void Fail(const char* format, ...);
extern long num_failures;

struct Cta;
struct Thread;
struct StoreGroup;
struct Warpgroup;

// A copy of cp.async: zeros follow the bytes that are read.
struct AsyncCopy {
  char* to;
  const void* from;
  int size;
  int bytes_read;
};

struct Thread {
  Cta* cta;
  // threadIdx.x.
  int index;
  bool is_done = false;
  // The instruction that it waits in; null if it can go on.
  const char* waits_in = nullptr;
  void* stack_pointer = nullptr;
  // cp.async: copies of no group yet, and groups that are not complete.
  std::vector<AsyncCopy> open_copies;
  std::deque<std::vector<AsyncCopy>> copy_groups;
  // Bulk stores: the open group is the last one.
  std::deque<std::shared_ptr<StoreGroup>> store_groups;
};

struct Warp {
  // Lanes that have come to an instruction of all lanes, and which one it is.
  int num_arrived = 0;
  const char* instruction = nullptr;
  int num_meetings = 0;
  // What lanes give one another: of this meeting, and of the one before, which some still read.
  alignas(16) char exchanged[2][kWarpSize * 64];
};

struct ThreadBarrier {
  int num_arrived = 0;
  int num_expected = 0;
  std::vector<Thread*> waiting;
};

struct Mbarrier {
  int num_expected;
  int num_pending;
  int64_t pending_bytes = 0;
  uint32_t phase = 0;
  // Whether fence.mbarrier_init has followed: peers and copies may use it then.
  bool is_fenced = false;
  std::vector<Thread*> waiting;
};

struct Cta {
  uint3 block;
  int rank;
  char* smem;
  int smem_bytes;
  // Shared memory as copies and wgmma see it: without writes of threads that no fence has followed.
  std::vector<char> seen_by_async;
  std::vector<std::unique_ptr<Thread>> threads;
  int num_ended = 0;
  std::vector<std::unique_ptr<Warp>> warps;
  std::vector<std::unique_ptr<Warpgroup>> warpgroups;
  std::array<ThreadBarrier, 16> barriers;
  std::map<uint32_t, Mbarrier> mbarriers;
};

// The thread that runs, and all CTAs of its cluster.
extern Thread* current;
extern std::vector<std::unique_ptr<Cta>> cluster;
extern ThreadBarrier cluster_barrier;

// Whether all threads have: its shared memory is nobody's then.
inline bool HasEnded(const Cta& cta) {
  return cta.num_ended == static_cast<int>(cta.threads.size());
}
inline int Lane() { return current->index % kWarpSize; }

// Shared memory begins at this address of its window, so that 0 is none.
inline constexpr uint32_t kSmemAddress = 1024;
uint32_t SharedAddress(const void* smem);
// Where `num_bytes` at an address lie; fails and returns null if they are not in shared memory.
char* SharedMemory(Cta& cta, uint32_t address, int num_bytes, const char* instruction);
// Bytes as asynchronous instructions see them; fails if a thread has written others without a
// fence.
void ReadAsync(Cta& cta, uint32_t address, void* to, int num_bytes, const char* instruction);
void WriteAsync(Cta& cta, uint32_t address, const void* from, int num_bytes, const char* what);

// Global memory that kernels may read, byte by byte; only loads that say what they read are
// checked.
extern std::vector<std::pair<const char*, size_t>> readable;
// Fails if bytes are read that are not all in one part of it.
void CheckRead(const void* from, size_t num_bytes);

// Waits until it is woken.
void Wait(const char* instruction);
// Lets other threads go on.
void Yield();
void WakeAll(std::vector<Thread*>& threads);

// Waits for all lanes of the warp, which must come to the same instruction.
void MeetWarp(const char* instruction);
// As MeetWarp; returns what each lane gave.
template <typename T>
const T* ExchangeInWarp(const char* instruction, const T& given) {
  static_assert(sizeof(T) <= 64, "a lane has 64 bytes");
  Warp& warp = *current->cta->warps[current->index / kWarpSize];
  T* all = reinterpret_cast<T*>(warp.exchanged[warp.num_meetings % 2]);
  all[Lane()] = given;
  MeetWarp(instruction);
  return all;
}

void Arrive(ThreadBarrier& barrier, int num_threads, const char* instruction);
void ArriveNamedBarrier(int barrier, int num_threads);
void SyncNamedBarrier(int barrier, int num_threads);
void SyncCta();
void SyncCluster();
// fence.proxy.async.
void FenceAsync();

// Runs a grid. `body` is the kernel, called by every thread.
void RunGrid(const cudaLaunchConfig_t& config, const std::function<void()>& body);

// Asynchronous work that can be done now: does one piece of it. False if there was none.
bool DoOneLoad();
bool DoOneStore();
bool DoOneProduct();
// When the threads of a cluster have ended, or cannot: what is left to do. With `check` it fails
// where somebody should have waited.
void EndCopies(Thread& thread, bool check);
void EndLoads(bool check);
void EndProducts(Cta& cta, bool check);
// A map of a tensor, as FindEncodeTiled (parts/tensor_map.cuh) expects it.
void* EncodeTiledFunction();

}  // namespace emulator
