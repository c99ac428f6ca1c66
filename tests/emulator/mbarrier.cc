// After the PTX ISA, "mbarrier": phases, expected arrivals, pending arrivals and tx-count.
#include "mbarrier.h"

#include <algorithm>
#include <cstring>

namespace emulator {

namespace {

// What the object in shared memory holds, so that it shows if something else is written there.
constexpr uint64_t kContents = 0x7265697272616221;

Mbarrier* Find(Cta& cta, uint32_t address, const char* instruction) {
  const auto found = cta.mbarriers.find(address);
  if (found == cta.mbarriers.end()) {
    Fail("%s: there is no barrier at address %u", instruction, address);
    return nullptr;
  }
  const char* object = SharedMemory(cta, address, sizeof kContents, instruction);
  if (std::memcmp(object, &kContents, sizeof kContents) != 0) {
    Fail("%s: the barrier at address %u has been overwritten", instruction, address);
  }
  return &found->second;
}

// PTX ISA, "Phase completion of the mbarrier object".
void EndPhaseIfComplete(Mbarrier& barrier) {
  if (barrier.num_pending == 0 && barrier.pending_bytes == 0) {
    barrier.num_pending = barrier.num_expected;
    ++barrier.phase;
    WakeAll(barrier.waiting);
  }
}

}  // namespace

void InitMbarrier(uint32_t address, int num_arrivals) {
  char* object = SharedMemory(*current->cta, address, sizeof kContents, "mbarrier.init");
  if (object == nullptr || address % 8 != 0 || num_arrivals < 1) {
    Fail("mbarrier.init: %d arrivals at address %u", num_arrivals, address);
    return;
  }
  WriteAsync(*current->cta, address, &kContents, sizeof kContents, "mbarrier.init");
  current->cta->mbarriers[address] = {num_arrivals, num_arrivals};
}

// PTX ISA, "fence.mbarrier_init".
void FenceMbarrierInit() {
  for (auto& [address, barrier] : current->cta->mbarriers) {
    barrier.is_fenced = true;
  }
}

void ArriveMbarrier(Cta& cta, uint32_t address, int num_bytes) {
  Mbarrier* barrier = Find(cta, address, "mbarrier.arrive");
  if (barrier == nullptr) {
    return;
  }
  if (&cta != current->cta && (!barrier->is_fenced || HasEnded(cta))) {
    Fail("mbarrier.arrive at a peer without fence.mbarrier_init, or one that has ended");
  }
  if (barrier->num_pending == 0) {
    Fail("mbarrier.arrive: more than %d arrivals at address %u", barrier->num_expected, address);
    return;
  }
  barrier->pending_bytes += num_bytes;
  --barrier->num_pending;
  EndPhaseIfComplete(*barrier);
}

void CompleteBytes(Cta& cta, uint32_t address, int num_bytes) {
  Mbarrier* barrier = Find(cta, address, "complete_tx");
  if (barrier == nullptr) {
    return;
  }
  if (!barrier->is_fenced) {
    Fail("complete_tx at a barrier without fence.mbarrier_init");
  }
  constexpr int64_t kMaxBytes = (1 << 20) - 1;
  barrier->pending_bytes -= num_bytes;
  if (std::abs(barrier->pending_bytes) > kMaxBytes) {
    Fail("complete_tx: the tx-count at address %u is out of range", address);
  }
  EndPhaseIfComplete(*barrier);
}

// PTX ISA, "mbarrier.test_wait / mbarrier.try_wait": the parity is that of the phase that runs, or
// of the one before it.
void WaitMbarrier(uint32_t address, uint32_t parity) {
  while (true) {
    Mbarrier* barrier = Find(*current->cta, address, "mbarrier.try_wait");
    if (barrier == nullptr || (barrier->phase & 1) != parity) {
      return;
    }
    barrier->waiting.push_back(current);
    Wait("mbarrier.try_wait");
  }
}

}  // namespace emulator
