// Runs an instance on random cases, and prints which fail.
//
//     run_cases f32|bf16|f16 TILE_M TILE_N TILE_K any|plain all|k_major SEED NUM_CASES
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "machine.h"
#include "random_case.h"

namespace {

std::string current_case;

void ReportBadAccess(int, siginfo_t* info, void*) {
  emulator::Fail("access to %p, outside of buffers", info->si_addr);
  std::printf("FAILED: %s\n", current_case.c_str());
  std::fflush(stdout);
  _exit(1);
}

void WatchAccesses() {
  static char stack[1 << 16];
  stack_t alternative = {};
  alternative.ss_sp = stack;
  alternative.ss_size = sizeof stack;
  sigaltstack(&alternative, nullptr);
  struct sigaction action = {};
  action.sa_sigaction = ReportBadAccess;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK;
  sigaction(SIGSEGV, &action, nullptr);
  sigaction(SIGBUS, &action, nullptr);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 9) {
    return 2;
  }
  const std::string dtype = argv[1];
  emulator::Limits limits = {};
  limits.dtype = dtype == "f32"    ? jaxgemm::DType::kF32
                 : dtype == "bf16" ? jaxgemm::DType::kBF16
                                   : jaxgemm::DType::kF16;
  limits.tile_m = std::atoi(argv[2]);
  limits.tile_n = std::atoi(argv[3]);
  limits.tile_k = std::atoi(argv[4]);
  limits.only_plain = std::string(argv[5]) == "plain";
  limits.needs_k_major = std::string(argv[6]) == "k_major";
  const int seed = std::atoi(argv[7]);
  const int num_cases = std::atoi(argv[8]);
  WatchAccesses();
  int num_failed = 0;
  for (int i = 0; i < num_cases; ++i) {
    if (!emulator::RunRandomCase(limits, seed + i, &current_case)) {
      ++num_failed;
      std::printf("FAILED with seed %d: %s\n", seed + i, current_case.c_str());
      std::fflush(stdout);
    }
  }
  std::printf("%d cases, %d failed\n", num_cases, num_failed);
  return num_failed > 0;
}
