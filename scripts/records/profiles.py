"""What a profile holds: the counters that Nsight Compute reads on a GPU, by the names that the lessons use."""
from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

SCHEMA = "flashsteps-profile/2"

# What the record says about how it was made; the options that make it true are in ncu_command().
METHOD = {
    "launch": "all kernels of the step's first call in `STEP check`",
    "clocks": "not locked",
    "caches": "flushed before every pass",
}


@dataclass(frozen=True)
class Counter:
    name: str  # ours: in the terminal, in the record, and in a README's show=...
    unit: str  # "%": 0 to 100; all others are whole numbers
    meaning: str
    # An ncu metric; @ opcodes, also with modifiers; = a sum or difference of other counters.
    source: str

    @property
    def is_metric(self) -> bool:
        return self.source[0] not in "@="


# Every metric was looked up in `ncu --query-metrics --chips gh100` and read on an H200. Those that begin with
# inst_, memory_, sass__ and smsp__sass_ come from instrumented code: exact, what the instructions ask for.
# The others are read in hardware. Percentages of activity are of the cycles in which an SM had work: idle SMs
# do not water them down.
COUNTERS = (
    Counter("duration_ns", "ns", "time of the launch, caches cold: no benchmark", "gpu__time_duration.sum"),
    Counter("sm_cycles", "cycles", "length of the launch in SM clocks", "sm__cycles_elapsed.max"),
    Counter("registers", "", "registers of a thread", "launch__registers_per_thread"),
    Counter("occupancy", "%", "warps in flight, of those that an SM can hold",
            "sm__warps_active.avg.pct_of_peak_sustained_active"),
    Counter("issue_busy", "%", "issue slots used", "sm__inst_issued.avg.pct_of_peak_sustained_active"),
    Counter("tensor_busy", "%", "tensor pipe at work (HFMA2, too, runs there)",
            "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active"),
    Counter("fma_busy", "%", "FP32 pipe at work",
            "sm__pipe_fma_cycles_active.avg.pct_of_peak_sustained_active"),
    Counter("xu_busy", "%", "special functions (exp2, 1/x), of their peak rate",
            "sm__inst_executed_pipe_xu.avg.pct_of_peak_sustained_active"),
    Counter("l1_busy", "%", "data stage of L1 and shared memory at work",
            "l1tex__data_pipe_lsu_wavefronts.avg.pct_of_peak_sustained_active"),
    Counter("instructions", "", "warp instructions", "inst_executed"),
    Counter("mma", "", "tensor products m16n8k16 (a wmma of 16x16x16 is two)", "@HMMA.16816"),
    Counter("wgmma", "", "tensor products of a warpgroup, once per warp", "@HGMMA|QGMMA"),
    Counter("ldmatrix", "", "ldmatrix (an fp16 wmma load from shared memory is one)", "@LDSM"),
    Counter("ffma", "", "FP32 multiply-adds", "@FFMA"),
    Counter("fmul", "", "FP32 multiplies", "@FMUL"),
    Counter("fadd", "", "FP32 adds", "@FADD"),
    Counter("mufu", "", "special functions: exp2, 1/x and the like", "@MUFU"),
    Counter("shuffles", "", "shuffles", "@SHFL"),
    Counter("barriers", "", "barriers, once per warp that arrives", "@BAR"),
    Counter("mbarrier_tries", "", "tries of waits at an mbarrier, once per warp", "@SYNCS.PHASECHK"),
    Counter("global_load_requests", "", "loads from global memory",
            "l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum"),
    Counter("global_store_requests", "", "stores to global memory",
            "l1tex__t_requests_pipe_lsu_mem_global_op_st.sum"),
    Counter("global_requests", "", "both together", "=global_load_requests+global_store_requests"),
    Counter("global_load_sectors", "", "32-byte sectors that the loads touch",
            "l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum"),
    Counter("global_store_sectors", "", "32-byte sectors that the stores touch",
            "l1tex__t_sectors_pipe_lsu_mem_global_op_st.sum"),
    Counter("global_sectors", "", "both together", "=global_load_sectors+global_store_sectors"),
    Counter("l2_read_bytes", "bytes", "from L2 to the SMs: what L1 did not have",
            "l1tex__m_xbar2l1tex_read_bytes.sum"),
    Counter("l2_write_bytes", "bytes", "from the SMs to L2", "l1tex__m_l1tex2xbar_write_bytes.sum"),
    Counter("dram_read_bytes", "bytes", "from DRAM", "dram__bytes_read.sum"),
    Counter("dram_write_bytes", "bytes", "to DRAM, without what is still in L2", "dram__bytes_write.sum"),
    Counter("shared_loads", "", "loads from shared memory, without ldmatrix",
            "smsp__sass_inst_executed_op_shared_ld.sum"),
    Counter("shared_stores", "", "stores to shared memory", "smsp__sass_inst_executed_op_shared_st.sum"),
    Counter("shared_requests", "", "accesses to shared memory, ldmatrix included",
            "smsp__sass_inst_executed_op_shared.sum"),
    Counter("shared_wavefronts", "", "passes through shared memory that they take",
            "memory_l1_wavefronts_shared"),
    Counter("shared_wavefronts_ideal", "", "passes without bank conflicts",
            "memory_l1_wavefronts_shared_ideal"),
    Counter("shared_wavefronts_ld", "", "passes of loads, counted in hardware",
            "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_ld.sum"),
    Counter("shared_wavefronts_st", "", "passes of stores, counted in hardware",
            "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_st.sum"),
    Counter("shared_wavefronts_all", "", "all passes, counted in hardware; a few are repeats",
            "l1tex__data_pipe_lsu_wavefronts_mem_shared.sum"),
    Counter("bank_conflicts", "", "passes lost to bank conflicts, counted in hardware",
            "l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum"),
    Counter("ldmatrix_wavefronts", "", "passes that ldmatrix takes",
            "smsp__sass_l1tex_data_pipe_lsu_wavefronts_mem_shared_op_ldsm.sum"),
    Counter("ldmatrix_conflicts", "", "passes of ldmatrix lost to bank conflicts",
            "smsp__sass_l1tex_data_bank_conflicts_pipe_lsu_mem_shared_op_ldsm.sum"),
    Counter("ldmatrix_wavefronts_ideal", "", "passes of ldmatrix without bank conflicts",
            "=ldmatrix_wavefronts-ldmatrix_conflicts"),
    Counter("issuing", "%", "of a warp's cycles: issues an instruction",
            "smsp__warp_issue_stalled_selected_per_warp_active.pct"),
    Counter("stall_long_scoreboard", "%", "waits for global or local memory, or at an mbarrier",
            "smsp__warp_issue_stalled_long_scoreboard_per_warp_active.pct"),
    Counter("stall_short_scoreboard", "%", "waits for shared memory, shuffle, special function",
            "smsp__warp_issue_stalled_short_scoreboard_per_warp_active.pct"),
    Counter("stall_barrier", "%", "waits for other warps at a barrier, or for wgmmas to end",
            "smsp__warp_issue_stalled_barrier_per_warp_active.pct"),
    Counter("stall_wait", "%", "waits out a fixed latency",
            "smsp__warp_issue_stalled_wait_per_warp_active.pct"),
    Counter("stall_math_pipe_throttle", "%", "waits for a busy arithmetic pipe",
            "smsp__warp_issue_stalled_math_pipe_throttle_per_warp_active.pct"),
    Counter("stall_mio_throttle", "%", "waits: queue to shared memory and the like is full",
            "smsp__warp_issue_stalled_mio_throttle_per_warp_active.pct"),
    Counter("stall_lg_throttle", "%", "waits: queue to global and local memory is full",
            "smsp__warp_issue_stalled_lg_throttle_per_warp_active.pct"),
    Counter("stall_not_selected", "%", "ready, but another warp was chosen",
            "smsp__warp_issue_stalled_not_selected_per_warp_active.pct"),
    Counter("stall_no_instruction", "%", "waits for the instruction cache",
            "smsp__warp_issue_stalled_no_instruction_per_warp_active.pct"),
    Counter("stall_gmma", "%", "waits for the other warps of a warpgroup before its wgmmas",
            "smsp__warp_issue_stalled_gmma_per_warp_active.pct"),
)
BY_NAME = {counter.name: counter for counter in COUNTERS}
METRICS = {counter.name: counter for counter in COUNTERS if counter.is_metric}  # what the record holds


def values(metrics: dict[str, float], opcodes: dict[str, int]) -> dict[str, float]:
    """All counters that a profile gives, in the order of COUNTERS."""
    found: dict[str, float] = {}
    for counter in COUNTERS:
        kind, rest = counter.source[0], counter.source[1:]
        if kind == "@":  # HMMA.16816 takes in HMMA.16816.F32, but FFMA not FFMA2
            wanted = tuple(f"{opcode}." for opcode in rest.split("|"))
            found[counter.name] = sum(n for op, n in opcodes.items() if f"{op}.".startswith(wanted))
        elif kind == "=":
            first, sign, second = re.split(r"([+-])", rest)
            if first in found and second in found:
                found[counter.name] = found[first] + found[second] * (1 if sign == "+" else -1)
        elif metrics.get(counter.name) is not None:
            found[counter.name] = metrics[counter.name]
    return found


def sum_of(kernels: list[dict[str, Any]]) -> dict[str, Any]:
    """What is said of a step as a whole: counts and times add up, registers are the most of any kernel."""
    metrics, opcodes = {}, {}
    for name, counter in METRICS.items():
        found = [kernel["metrics"].get(name) for kernel in kernels]
        if counter.unit != "%" and None not in found:
            metrics[name] = max(found) if name == "registers" else sum(found)
    for kernel in kernels:
        for opcode, count in kernel["opcodes"].items():
            opcodes[opcode] = opcodes.get(opcode, 0) + count
    return {"metrics": metrics, "opcodes": opcodes}


def of_step(step: dict[str, Any]) -> dict[str, float]:
    """All counters of a step. Of several kernels percentages do not add up: they are those of the longest."""
    kernels = step.get("kernels", [step])
    longest = max(kernels, key=lambda kernel: kernel["metrics"].get("duration_ns", 0))
    shares = {name: value for name, value in longest["metrics"].items() if METRICS[name].unit == "%"}
    return values(step["metrics"] | shares, step["opcodes"])


def cell(name: str, value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:.1f} %" if BY_NAME[name].unit == "%" else f"{value:,}"
