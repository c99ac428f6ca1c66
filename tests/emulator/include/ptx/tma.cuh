// As ffi/ptx/tma.cuh; async_copies.cc says what the instructions do.
#pragma once

#include "async_copies.h"
#include "ptx/shared_address.cuh"
#include "tensor_map.h"

namespace jaxgemm {

struct BoxOrigin {
  int column;
  int row;
  int matrix;
};

// Not modelled.
using CachePolicy = uint64_t;
inline CachePolicy EvictNormal() { return 0; }
inline CachePolicy EvictLast() { return 0; }

// Only looks whether there is one.
inline void PrefetchTensorMap(const CUtensorMap* map) { emulator::ReadMap(map); }

inline void LoadBoxMulticast(const CUtensorMap* map, BoxOrigin origin, void* smem,
                             uint64_t* barrier, uint16_t cta_mask, CachePolicy) {
  emulator::LoadBox(map, {origin.column, origin.row, origin.matrix}, SharedAddress(smem),
                    SharedAddress(barrier), cta_mask);
}
inline void LoadBox(const CUtensorMap* map, BoxOrigin origin, void* smem, uint64_t* barrier,
                    CachePolicy policy) {
  LoadBoxMulticast(map, origin, smem, barrier, 1 << emulator::current->cta->rank, policy);
}

inline void StoreBox(const CUtensorMap* map, BoxOrigin origin, const void* smem) {
  emulator::StoreBox(map, {origin.column, origin.row, origin.matrix}, SharedAddress(smem));
}
inline void CommitStores() { emulator::CommitStores(); }
template <int kPending>
void WaitForStoresToRead() {
  emulator::WaitForStores(kPending, true);
}

inline void FenceAsyncProxy() { emulator::FenceAsync(); }

}  // namespace jaxgemm
