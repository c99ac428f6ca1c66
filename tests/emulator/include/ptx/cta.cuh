// As ffi/ptx/cta.cuh; machine.cc says what the instructions do.
#pragma once

#include "machine.h"

namespace jaxgemm {

inline constexpr int kWarpSize = emulator::kWarpSize;
inline constexpr int kWarpgroupSize = emulator::kWarpgroupSize;

inline void SyncNamedBarrier(int barrier, int num_threads) {
  emulator::SyncNamedBarrier(barrier, num_threads);
}
inline void ArriveNamedBarrier(int barrier, int num_threads) {
  emulator::ArriveNamedBarrier(barrier, num_threads);
}

inline int LaneId() { return emulator::Lane(); }
inline uint32_t ClusterRank() { return emulator::current->cta->rank; }
inline void SyncCluster() { emulator::SyncCluster(); }

// Not modelled.
template <int kRegisters>
void ReleaseRegisters() {}
template <int kRegisters>
void TakeRegisters() {}
// Kernels run one after another.
inline void LaunchDependents() {}
inline void WaitForKernelBefore() {}
inline void PrefetchToL1(const void*) {}
inline void PrefetchToL2(const void*) {}

}  // namespace jaxgemm
