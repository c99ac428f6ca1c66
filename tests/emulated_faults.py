"""Faults of CUDA kernels, each a small change of one source, which the emulator must find."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Fault:
    """What makes an instance wrong.

    Attributes:
      name: what is wrong then.
      instance: the name of the instance.
      file: the source, in ffi/.
      old: what is there, once.
      new: what takes its place.
    """

    name: str
    instance: str
    file: str
    old: str
    new: str


_PLAIN, _CLUSTER = "sm90_bf16_128x128", "sm90_bf16_128x128_m2_turns"
_MMA, _WARPTILED = "mma_sync_bf16_128x128_s3", "warptiled_64x64x16"
_TF32 = "sm90_tf32_64x128"
_DENSE, _FRAGMENT = "kernels/sm90_dense.cuh", "parts/fragment.cuh"
_MULTIPLIER = "parts/dense_multiplier.cuh"
_WAIT_AND_SYNC = "WaitForCopies<Shape::kStages - 2>();\n          __syncthreads();"

FAULTS = (
    # The rungs below Hopper: barriers, copies that nobody waits for, ends of matrices.
    Fault("a_tile_is_read_early", "tiled_bf16", "kernels/tiled.cuh",
          "b.Load();\n    __syncthreads();", "b.Load();"),
    Fault("a_tile_is_overwritten_early", "tiled_bf16", "kernels/tiled.cuh",
          "    __syncthreads();\n  }", "  }"),
    Fault("a_warp_is_ahead", _WARPTILED, "kernels/warptiled.cuh",
          _WAIT_AND_SYNC, "WaitForCopies<Shape::kStages - 2>();"),
    Fault("a_copy_is_late", _WARPTILED, "kernels/warptiled.cuh",
          _WAIT_AND_SYNC, "WaitForCopies<Shape::kStages - 1>();\n          __syncthreads();"),
    Fault("odd_rows_are_read_in_fours", _WARPTILED, "kernels/warptiled.cuh",
          " && tensor.row_stride % 4 == 0;", ";"),
    Fault("a_copy_is_late", _MMA, "kernels/mma_sync.cuh",
          "WaitForCopies<kAhead - 1>", "WaitForCopies<kAhead>"),
    Fault("the_last_stage_is_overwritten_early", _MMA, "kernels/mma_sync.cuh",
          "    __syncthreads();\n    Store();", "    Store();"),
    Fault("halves_of_a_fragment_are_swapped", _MMA, "parts/swizzled_tile.cuh",
          "const int outer_half = kKFirst ?", "const int outer_half = !kKFirst ?"),
    Fault("rows_of_a_copy_do_not_end_in_zeros", _MMA, "parts/realign.cuh",
          "return count == kUnitHalves ? unit : FirstHalves(unit, count);", "return unit;"),
    Fault("a_copy_reads_past_its_operand", _MMA, "parts/realign.cuh",
          "first + 2 * kUnitBytes <=", "first + kUnitBytes <="),
    # The ring between TMA and wgmma.
    Fault("barriers_are_not_there_yet", _CLUSTER, _DENSE, "  SyncRings<Kernel>();\n", ""),
    Fault("barriers_are_not_visible", _CLUSTER, _DENSE, "    FenceBarrierInit();\n", ""),
    Fault("too_few_bytes_are_announced", _PLAIN, _DENSE,
          "ArriveExpectBytes(full, kStageBytes)", "ArriveExpectBytes(full, kStageBytes / 2)"),
    Fault("a_slot_is_released_early", _PLAIN, _MULTIPLIER,
          "WaitForProducts<1>();\n      Rel", "Rel"),
    Fault("peers_do_not_count", _CLUSTER, _DENSE,
          "Kernel::kReaders * 4 * Kernel::kClusterSize", "Kernel::kReaders * 4"),
    Fault("a_cta_ends_early", _CLUSTER, _DENSE, "  TakeSlotsBack(ring, at);\n", ""),
    Fault("the_parity_is_not_that_of_the_round", _PLAIN, "parts/ring.cuh",
          "parity ^= 1;", "parity = 1;"),
    Fault("a_turn_is_not_given", _CLUSTER, _MULTIPLIER,
          "work_.Has(turn_ + 1)", "false"),
    # Products.
    Fault("registers_are_read_early", _PLAIN, _MULTIPLIER, "    WaitForProducts<0>();\n", ""),
    Fault("registers_are_not_fenced", _PLAIN, _MULTIPLIER, "    FenceProducts();\n", ""),
    Fault("atoms_follow_one_another", _PLAIN, "ptx/descriptor.cuh",
          "kMajor == Major::kMN ? mn_stride_bytes >> 4 : 1", "1"),
    Fault("fragments_are_overwritten_early", _TF32, "kernels/sm90_tf32.cuh",
          "    WaitForProducts<1>();\n", ""),
    Fault("fragments_are_not_fenced", _TF32, "kernels/sm90_tf32.cuh",
          "    FenceProducts();\n", ""),
    Fault("rows_of_a_lane_are_swapped", _TF32, "parts/register_rows.h",
          "lane / 4 % 2 * 8;", "(1 - lane / 4 % 2) * 8;"),
    # The epilogue.
    Fault("tma_stores_without_a_fence", _PLAIN, _FRAGMENT,
          "    FenceAsyncProxy();\n    __syncwarp();", "    __syncwarp();"),
    Fault("tma_stores_what_other_lanes_have_not_written", _PLAIN, _FRAGMENT,
          "    FenceAsyncProxy();\n    __syncwarp();", "    FenceAsyncProxy();"),
    Fault("staging_is_overwritten_early", _PLAIN, _FRAGMENT,
          "kSlotsPerWarp - 1>", "kSlotsPerWarp>"),
    Fault("staging_of_one_output_is_not_counted", _PLAIN, _FRAGMENT,
          "      CommitStores();\n      return;", "      return;"),
    Fault("a_warp_ends_early", _PLAIN, _FRAGMENT, "{ WaitForStoresToRead<0>(); }", "{}"),
    Fault("a_slice_is_left_out", _PLAIN, "parts/packed_tile.cuh",
          "num_stored_ = 0;", "num_stored_ = 1;"),
    Fault("a_slice_is_that_of_the_next_tile", _PLAIN, _DENSE,
          "!stores_later || ", ""),
    Fault("slots_of_the_other_consumer_are_read", _CLUSTER, _MULTIPLIER,
          "      at_.Skip(work_.loads.num_steps);\n", ""),
    Fault("the_bias_is_overwritten_early", _PLAIN, "parts/bias_in_flight.cuh",
          "    SyncNamedBarrier(barrier, kWarpgroupSize);\n#pragma", "#pragma"),
    Fault("the_bias_is_read_early", _PLAIN, "parts/bias_in_flight.cuh",
          "    SyncNamedBarrier(barrier, kWarpgroupSize);\n  }", "  }"),
    Fault("c_is_that_of_another_matrix", _PLAIN, _FRAGMENT,
          "c_offset_ = batch.Offset(params_.c);", "c_offset_ = batch.Offset(params_.d);"),
    # Matrices that lie between the rows of one another.
    Fault("matrices_that_are_stored_follow_one_another", _PLAIN, _FRAGMENT,
          "d_matrix_ * maps_.matrix_stride;",
          "static_cast<int64_t>(d_matrix_) * params_.m * tensor.row_stride;"),
    Fault("matrices_that_are_loaded_follow_one_another", _PLAIN, "parts/batch.h",
          "return smallest > 0 ? smallest :", "return"),
    Fault("matrices_are_taken_to_be_as_aligned_as_rows", _MMA, "parts/tensor_map.cuh",
          "    strides |= stride;\n", "    strides |= 0 * stride;\n"),
    Fault("rows_of_a_copy_follow_one_another", _MMA, "parts/realign.cuh",
          "tensor->row_stride / size.columns * columns;", "columns;"),
)  # fmt: skip
