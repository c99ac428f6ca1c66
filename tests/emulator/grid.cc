// Runs grids: threads as fibers, one after another, by the order that the settings ask for.
#include <sys/mman.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "cuda_runtime.h"
#include "wgmma.h"

// Globals of CUDA, set whenever another thread goes on.
uint3 threadIdx;
uint3 blockIdx;
dim3 gridDim;

// Static shared memory of all kernels: the linker knows where the section begins and ends.
extern "C" char __start_emulated_smem[] __attribute__((weak));
extern "C" char __stop_emulated_smem[] __attribute__((weak));

namespace emulator {

namespace {

constexpr size_t kStackBytes = 128 * 1024;
constexpr size_t kMaxSmemBytes = 227 * 1024;
constexpr size_t kPageBytes = 4096;

void* scheduler_stack_pointer;
const std::function<void()>* kernel_body;

}  // namespace

// Saves the registers that a function must keep, and goes on where another fiber saved its own.
extern "C" void EmulatorSwitch(void** save, void* to);
#if !defined(__x86_64__)
#error "stacks are switched by instructions of x86-64"
#endif
asm(R"(
.text
.globl EmulatorSwitch
EmulatorSwitch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
)");

namespace {

void Resume(Thread& thread) {
  current = &thread;
  threadIdx = {static_cast<unsigned>(thread.index), 0, 0};
  blockIdx = thread.cta->block;
  EmulatorSwitch(&scheduler_stack_pointer, thread.stack_pointer);
  current = nullptr;
}

void EnterThread() {
  (*kernel_body)();
  current->is_done = true;
  ++current->cta->num_ended;
  EmulatorSwitch(&current->stack_pointer, scheduler_stack_pointer);
  std::abort();
}

// Stacks are used again and again, by the threads of one cluster after another.
char* StackOf(int thread_of_cluster) {
  static std::vector<std::unique_ptr<char[]>> stacks;
  while (static_cast<int>(stacks.size()) <= thread_of_cluster) {
    stacks.push_back(std::make_unique<char[]>(kStackBytes));
  }
  return stacks[thread_of_cluster].get();
}

// Where the shared memory of a CTA of the cluster ends: at a page that nobody can access.
char* SmemEnd(int rank) {
  static std::vector<char*> ends;
  while (static_cast<int>(ends.size()) <= rank) {
    const size_t bytes = (kMaxSmemBytes + kPageBytes - 1) / kPageBytes * kPageBytes;
    void* pages = mmap(nullptr, bytes + kPageBytes, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    ends.push_back(static_cast<char*>(pages) + bytes);
    mprotect(ends.back(), kPageBytes, PROT_NONE);
  }
  return ends[rank];
}

void PrepareThread(Thread& thread, char* stack) {
  constexpr int kSavedRegisters = 6;
  const uintptr_t end = reinterpret_cast<uintptr_t>(stack + kStackBytes) / 64 * 64;
  void** top = reinterpret_cast<void**>(end);
  // A function is entered with its return address 8 bytes below a multiple of 16.
  *--top = nullptr;
  *--top = reinterpret_cast<void*>(EnterThread);
  for (int i = 0; i < kSavedRegisters; ++i) {
    *--top = nullptr;
  }
  thread.stack_pointer = top;
}

bool CanRun(const Thread& thread) { return !thread.is_done && thread.waits_in == nullptr; }

bool CanRun(const Cta& cta, int warp) {
  return std::any_of(cta.threads.begin() + warp * kWarpSize,
                     cta.threads.begin() + (warp + 1) * kWarpSize,
                     [](const auto& thread) { return CanRun(*thread); });
}

// Lets each lane of a warp that can go on do so until it waits, or some of them. One that is woken
// meanwhile goes on with those of its warp who have waited with it.
void RunWarp(Cta& cta, int warp) {
  std::vector<Thread*> lanes;
  for (int lane = 0; lane < kWarpSize; ++lane) {
    Thread& thread = *cta.threads[warp * kWarpSize + lane];
    if (CanRun(thread)) {
      lanes.push_back(&thread);
    }
  }
  if (settings.order == Order::kLast) {
    std::reverse(lanes.begin(), lanes.end());
  } else if (settings.order == Order::kAtRandom) {
    std::shuffle(lanes.begin(), lanes.end(), random_bits);
    if (random_bits() % 8 == 0) {
      lanes.resize(1 + random_bits() % lanes.size());
    }
  }
  for (Thread* thread : lanes) {
    Resume(*thread);
  }
}

bool DoOneAsync() {
  switch (random_bits() % 3) {
    case 0:
      return DoOneLoad() || DoOneStore() || DoOneProduct();
    case 1:
      return DoOneProduct() || DoOneLoad() || DoOneStore();
    default:
      return DoOneStore() || DoOneProduct() || DoOneLoad();
  }
}

void ReportDeadlock() {
  std::map<std::string, int> num_threads;
  for (const auto& cta : cluster) {
    for (const auto& thread : cta->threads) {
      const std::string warp = std::to_string(thread->index / kWarpSize);
      if (!thread->is_done) {
        ++num_threads["CTA " + std::to_string(cta->block.x) + ", warp " + warp + " in " +
                      thread->waits_in];
      }
    }
  }
  Fail("deadlock");
  for (const auto& [where, count] : num_threads) {
    std::printf("    %d threads of %s\n", count, where.c_str());
  }
}

// Lets one warp go on, the first that can by the order. False if none can. `last` is the one that
// has run last.
bool RunOneWarp(int& last) {
  const int warps_per_cta = static_cast<int>(cluster[0]->warps.size());
  const int num_warps = warps_per_cta * static_cast<int>(cluster.size());
  int first = 0;
  if (settings.order == Order::kInTurns) {
    first = last + 1;
  } else if (settings.order == Order::kAtRandom) {
    first = static_cast<int>(random_bits() % num_warps);
  }
  for (int i = 0; i < num_warps; ++i) {
    const int next = (first + i) % num_warps;
    last = settings.order == Order::kLast ? num_warps - 1 - next : next;
    Cta& cta = *cluster[last / warps_per_cta];
    if (CanRun(cta, last % warps_per_cta)) {
      RunWarp(cta, last % warps_per_cta);
      return true;
    }
  }
  return false;
}

// Runs all threads of the cluster to their end. False if they cannot come to it.
bool RunThreads() {
  int last = 0;
  while (!std::all_of(cluster.begin(), cluster.end(),
                      [](const auto& cta) { return HasEnded(*cta); })) {
    if (settings.timing == Timing::kAtRandom && random_bits() % 4 == 0) {
      DoOneAsync();
    }
    if (!RunOneWarp(last) && !DoOneAsync()) {
      ReportDeadlock();
      return false;
    }
  }
  return true;
}

void FillWithNan(char* begin, char* end) {
  std::fill(reinterpret_cast<uint16_t*>(begin), reinterpret_cast<uint16_t*>(end), kNan);
}

std::unique_ptr<Cta> MakeCta(uint3 block, int rank, int num_threads, int smem_bytes) {
  auto cta = std::make_unique<Cta>();
  cta->block = block;
  cta->rank = rank;
  // At a multiple of 1024 bytes, as the largest alignment that kernels ask for.
  cta->smem = SmemEnd(rank) - (smem_bytes + 1023) / 1024 * 1024;
  cta->smem_bytes = smem_bytes;
  FillWithNan(cta->smem, cta->smem + smem_bytes);
  cta->seen_by_async.assign(cta->smem, cta->smem + smem_bytes);
  for (int i = 0; i < num_threads; ++i) {
    cta->threads.push_back(std::make_unique<Thread>());
    cta->threads.back()->cta = cta.get();
    cta->threads.back()->index = i;
    PrepareThread(*cta->threads.back(), StackOf(rank * num_threads + i));
  }
  for (int i = 0; i < num_threads / kWarpSize; ++i) {
    cta->warps.push_back(std::make_unique<Warp>());
  }
  for (int i = 0; i < num_threads / kWarpgroupSize; ++i) {
    cta->warpgroups.push_back(std::make_unique<Warpgroup>());
  }
  return cta;
}

void RunCluster(uint3 first_block, int size, int num_threads, int smem_bytes) {
  FillWithNan(__start_emulated_smem, __stop_emulated_smem);
  cluster.clear();
  cluster_barrier = {};
  for (int rank = 0; rank < size; ++rank) {
    const uint3 block = {first_block.x + rank, first_block.y, first_block.z};
    cluster.push_back(MakeCta(block, rank, num_threads, smem_bytes));
  }
  const bool has_ended = RunThreads();
  for (const auto& cta : cluster) {
    for (const auto& thread : cta->threads) {
      EndCopies(*thread, has_ended);
    }
    EndProducts(*cta, has_ended);
  }
  EndLoads(has_ended);
}

}  // namespace

void Yield() {
  Thread& thread = *current;
  EmulatorSwitch(&thread.stack_pointer, scheduler_stack_pointer);
}

void Wait(const char* instruction) {
  current->waits_in = instruction;
  Yield();
}

void WakeAll(std::vector<Thread*>& threads) {
  for (Thread* thread : threads) {
    thread->waits_in = nullptr;
  }
  threads.clear();
}

void RunGrid(const cudaLaunchConfig_t& config, const std::function<void()>& body) {
  const int num_threads = static_cast<int>(config.blockDim.x);
  int cluster_size = 1;
  for (unsigned i = 0; i < config.numAttrs; ++i) {
    if (config.attrs[i].id == cudaLaunchAttributeClusterDimension) {
      cluster_size = static_cast<int>(config.attrs[i].val.clusterDim.x);
    }
  }
  const dim3 grid = config.gridDim;
  if (grid.x == 0 || grid.y == 0 || grid.y > 65535 || num_threads > 1024 ||
      num_threads % kWarpSize != 0 || grid.x % cluster_size != 0 ||
      config.dynamicSmemBytes > kMaxSmemBytes) {
    Fail("a grid of %u x %u CTAs of %d threads and %zu bytes, clusters of %d", grid.x, grid.y,
         num_threads, config.dynamicSmemBytes, cluster_size);
    return;
  }
  kernel_body = &body;
  gridDim = grid;
  for (unsigned y = 0; y < grid.y; ++y) {
    for (unsigned x = 0; x < grid.x; x += cluster_size) {
      const unsigned first = settings.order == Order::kLast ? grid.x - cluster_size - x : x;
      RunCluster({first, y, 0}, cluster_size, num_threads,
                 static_cast<int>(config.dynamicSmemBytes));
    }
  }
  cluster.clear();
}

}  // namespace emulator
