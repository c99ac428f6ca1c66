// As ffi/ptx/mbarrier.cuh; mbarrier.cc says what the instructions do.
#pragma once

#include "mbarrier.h"
#include "ptx/shared_address.cuh"

namespace jaxgemm {

inline void InitBarrier(uint64_t* barrier, int num_arrivals) {
  emulator::InitMbarrier(SharedAddress(barrier), num_arrivals);
}
inline void FenceBarrierInit() { emulator::FenceMbarrierInit(); }

inline void ArriveExpectBytes(uint64_t* barrier, uint32_t bytes) {
  emulator::ArriveMbarrier(*emulator::current->cta, SharedAddress(barrier), bytes);
}
inline void ArriveBarrier(uint64_t* barrier) { ArriveExpectBytes(barrier, 0); }

// PTX ISA, "mapa": the same place in the shared memory of another CTA of the cluster.
inline void ArriveAtPeer(uint64_t* barrier, uint32_t rank) {
  emulator::ArriveMbarrier(*emulator::cluster[rank], SharedAddress(barrier), 0);
}

inline void WaitBarrier(uint64_t* barrier, uint32_t parity) {
  emulator::WaitMbarrier(SharedAddress(barrier), parity);
}
inline void WaitBarrierGuarded(uint64_t* barrier, uint32_t parity) {
  WaitBarrier(barrier, parity);
  __syncwarp();
}

}  // namespace jaxgemm
