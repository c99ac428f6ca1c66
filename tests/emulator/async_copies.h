// Copies that do not wait: cp.async, and TMA's loads and stores of boxes.
#pragma once

#include <cuda.h>

#include <cstdint>

namespace emulator {

// cp.async: copies `size` bytes, of which the first `bytes_read` are read and the others are zero.
void CopyAsync(uint32_t address, const void* from, int size, int bytes_read);
void CommitCopies();
void WaitForCopies(int pending);

// cp.async.bulk.tensor to shared memory, of every CTA in the mask.
void LoadBox(const CUtensorMap* map, const int (&origin)[3], uint32_t address, uint32_t mbarrier,
             unsigned cta_mask);
// cp.async.bulk.tensor to global memory.
void StoreBox(const CUtensorMap* map, const int (&origin)[3], uint32_t address);
void CommitStores();
// cp.async.bulk.wait_group, of which `.read` does not wait for global memory.
void WaitForStores(int pending, bool only_read);

}  // namespace emulator
