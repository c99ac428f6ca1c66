// Barriers in shared memory, by address.
#pragma once

#include "machine.h"

namespace emulator {

void InitMbarrier(uint32_t address, int num_arrivals);
void FenceMbarrierInit();
// Announces bytes, then arrives.
void ArriveMbarrier(Cta& cta, uint32_t address, int num_bytes);
// An asynchronous copy has brought bytes.
void CompleteBytes(Cta& cta, uint32_t address, int num_bytes);
// Waits until the phase with this parity has ended.
void WaitMbarrier(uint32_t address, uint32_t parity);

}  // namespace emulator
