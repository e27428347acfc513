// The mistakes of mutants.cu. Plain C++: the kernel and the test both include it.
#pragma once

#include <utility>

namespace mutations {

enum Mutation {
  kNone,  // the control: it must pass
  kQkSkipped,
  kKTransposed,
  kONotRescaled,
  kSumNotRescaled,
  kMaskOffByOne,
  kLastTileDropped,
  kOneRowWrong,
  kTailNotMasked,
  kRowNeverWritten,
  kWritesNan,
  kWritesInf,
  kPastTheEnd,
  kBeforeTheStart,
  kInputModified,
  kPaddingRead,
  kEmptyRowNotZero,
  kLseInLog2,
  kNotDeterministic,
  kNoMax,
  kMaxStartsAtZero,
  kMaxOfFirstTileOnly,
  kVUsesKStrides,
  kOutputKept,
  kLseKept,
  kPaddingInMaximum,
  kGapInMaximum,
  kMaxFromShared,
  kScaleIgnored,
  kBatchesFrom2,
  kHeadsFrom8,
  kGroupOf2,
  kGroupAbove4,
  kRowsFrom320,
  kKeysFrom1024,
  kRoundBy128,
  kRoundBy256,
  kStaleFromTile13,
  kLseStride,
  kLseAlways,
  k32BitOffsets,
  kMaxStartsAt300,
  kScoresClamped,
  kScoresClampedAbove,
  kElementOff,
  kPTruncated,
  kOTruncated,
  kTableOfBatch0,
  kPagesInOrder,
  kFirstPageOnly,
  kTableOneBeyond,
  kSlotInMaximum,
  kNumMutations
};

inline constexpr const char* kNames[kNumMutations] = {
    "mutant_none",           "mutant_qk_skipped",       "mutant_k_transposed",   "mutant_o_not_rescaled",
    "mutant_sum_not_rescaled", "mutant_mask_off_by_one", "mutant_last_tile_dropped", "mutant_one_row_wrong",
    "mutant_tail_not_masked", "mutant_row_never_written", "mutant_writes_nan",    "mutant_writes_inf",
    "mutant_past_the_end",   "mutant_before_the_start", "mutant_input_modified", "mutant_padding_read",
    "mutant_empty_row_not_zero", "mutant_lse_in_log2",  "mutant_not_deterministic",
    "mutant_no_max",         "mutant_max_starts_at_zero", "mutant_max_of_first_tile_only", "mutant_v_uses_k_strides",
    "mutant_output_kept",    "mutant_lse_kept",         "mutant_padding_in_maximum", "mutant_gap_in_maximum",
    "mutant_max_from_shared", "mutant_scale_ignored",
    "mutant_batches_from_2", "mutant_heads_from_8",     "mutant_group_of_2",     "mutant_group_above_4",
    "mutant_rows_from_320",  "mutant_keys_from_1024",   "mutant_round_by_128",   "mutant_round_by_256",
    "mutant_stale_from_tile_13", "mutant_lse_stride",   "mutant_lse_always",     "mutant_32_bit_offsets",
    "mutant_max_starts_at_300", "mutant_scores_clamped", "mutant_scores_clamped_above",
    "mutant_element_off",    "mutant_p_truncated",      "mutant_o_truncated",
    "mutant_table_of_batch_0", "mutant_pages_in_order", "mutant_first_page_only", "mutant_table_one_beyond",
    "mutant_slot_in_maximum"};

}  // namespace mutations
