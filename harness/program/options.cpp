#include "harness/program/options.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <filesystem>
#include <iostream>

#include "harness/base/atomic_file.h"
#include "harness/base/text.h"
#include "harness/base/usage_error.h"
#include "harness/problem/shapes.h"
#include "harness/problem/tensors_file.h"

namespace flashsteps {
namespace {

template <typename Enum>
Enum lookup(const std::vector<std::pair<std::string, Enum>>& names, const std::string& option,
            const std::string& text) {
  std::string known;
  for (const auto& [candidate, value] : names) {
    if (candidate == text) return value;
    known += (known.empty() ? "" : ", ") + candidate;
  }
  throw UsageError(option + ": unknown value '" + text + "'; it is one of " + known);
}

// One file has room for the outputs of one call.
void check_what_to_save(const Options& o) {
  if (!o.problems.empty() && !o.problems[0].lse) throw UsageError("--save: writes o and lse, so no --no-lse");
  if (o.steps.size() != 1) throw UsageError("--save: takes the outputs of one step; name it");
  if (o.problems.size() != 1)
    throw UsageError("--save: takes the outputs of one problem, from --shape or --tensors; these are " +
                     std::to_string(o.problems.size()));
}

void check_different_files(const std::vector<std::pair<std::string, std::string>>& options) {
  namespace fs = std::filesystem;
  const auto same = [](const std::string& a, const std::string& b) {
    std::error_code no_such_file;
    return fs::equivalent(a, b, no_such_file) ||
           fs::weakly_canonical(fs::absolute(a)) == fs::weakly_canonical(fs::absolute(b));
  };
  for (size_t i = 0; i < options.size(); ++i) {
    for (size_t j = i + 1; j < options.size(); ++j) {
      const auto& [option, path] = options[i];
      const auto& [other, other_path] = options[j];
      if (!path.empty() && !other_path.empty() && same(path, other_path))
        throw UsageError(other + " " + other_path + ": is the file of " + option);
    }
  }
}

}  // namespace

ParseResult parse_options(int argc, const char* const* argv, bool isolated) {
  Options o;
  o.in_process = !isolated;
  CLI::App app{"FlashSteps: flash attention, one idea at a time.", without_controls(argc > 0 ? argv[0] : "")};
  app.require_subcommand(1);
  app.footer(
      "Exit status: 0 all passed; 1 something failed validation or nothing could run; 2 wrong use, or a "
      "step\n"
      "named explicitly cannot run here; 3 a step crashed or hung.");

  std::vector<std::string> steps, shapes, dtypes, layouts, inputs, lengths;
  std::string grid;
  bool causal = false, full = false, no_lse = false;
  std::string seed_text = "1", scale_text;
  const auto add_problem_options = [&](CLI::App* c) {
    // One value each time: a step's name that follows is not another shape.
    const auto repeatable = [&](const char* option, std::vector<std::string>& values, const char* help) {
      c->add_option(option, values, std::string(help) + " (repeatable)")->allow_extra_args(false);
    };
    repeatable("--shape", shapes, kShapeForms);
    c->add_option("--grid", grid, "'paper': batch * seqlen = 16384, heads * head_dim = 2048");
    repeatable("--dtype", dtypes, "fp32, fp16 or bf16");
    c->add_flag("--causal", causal, "causal mask, aligned bottom-right (with --full: both)");
    c->add_flag("--full", full, "no mask");
    repeatable("--layout", layouts, "bhsd, bshd, qkv, gapped, odd or far");
    repeatable("--kv-lengths", lengths, "full, random or zeros");
    repeatable("--inputs", inputs, "normal, sharp, shifted, structured, offset, ramps or huge");
    c->add_option("--seed", seed_text, "of the inputs");
    c->add_flag("--no-lse", no_lse, "the caller does not want the log-sum-exp");
    c->add_option("--softmax-scale", scale_text, "of the scores; 1 / sqrt(D) when not given");
    c->add_option("--tensors", o.tensors_path,
                  "your own q, k, v from a safetensors file, with axes as --layout says (bhsd or bshd), and "
                  "kv_lengths [batch] if it has them");
    c->add_option("--json", o.json_path, "write results to this file");
  };
  const auto add_run_options = [&](CLI::App* c) {
    c->add_option("steps", steps,
                  "steps to take, e.g. v02_smem_tiles or v02; all when none is named. v20@128x64 is v20 "
                  "in its configuration 128x64, v20@all in each");
    c->add_option("--backend", o.backend, "cuda, emulator, or auto: the GPU if there is one");
    add_problem_options(c);
    c->add_option(
        "--timeout", o.timeout_seconds,
        "seconds that a step may compute, or sleep, without a sign of life before it counts as hung; time in "
        "which it got no core does not count (worker processes only)");
    c->add_flag("--verbose", o.verbose, "print every problem");
    if (isolated)
      c->add_flag("--in-process", o.in_process, "no worker processes (for debuggers and profilers)");
  };
  const auto add_mode_options = [&](CLI::App* c) {
    c->add_option("--mode", o.modes, "emulator: early, late or random completion and order (repeatable)")
        ->allow_extra_args(false);
    c->add_option("--seeds", o.seeds, "emulator: random orders per problem");
    c->add_flag("!--no-race-detector", o.race_detector, "emulator: do not look for races (faster)");
  };
  add_run_options(app.add_subcommand("run", "validate, then time on the GPU or count on the emulator"));
  CLI::App* const check = app.add_subcommand("check", "validate; without a shape, on the covering sample");
  add_run_options(check);
  add_mode_options(check);
  check->add_option("--memory", o.memory_gib, "GiB of the device per problem; the sample skips others");
  CLI::App* const bench = app.add_subcommand("bench", "time the steps that pass, interleaved (GPU)");
  add_run_options(bench);
  for (CLI::App* c : {app.get_subcommand("run"), check})
    c->add_option("--save", o.save_path, "write o and lse to this safetensors file, if the step passes");
  for (CLI::App* c : {app.get_subcommand("run"), bench})
    c->add_option("--rounds", o.rounds, "samples per step, at least 7");
  add_run_options(app.add_subcommand("count", "the emulator's exact counters"));
  CLI::App* const trace = app.add_subcommand(
      "trace",
      "who waits for whom in one CTA, as a trace that chrome://tracing and Perfetto show (emulator)");
  add_run_options(trace);
  std::string cta_text;
  trace->add_option("--cta", cta_text, "which one, counted along x, then y, then z; the last if not given");
  CLI::App* const problems = app.add_subcommand(
      "problems", "the problems that these options mean, and by what outputs are judged, as JSON");
  add_problem_options(problems);
  CLI::Option* const contenders =
      problems->add_option("--contenders", o.contenders, "the order of these in each round of a race as well")
          ->check(CLI::Range(1, 1000));
  problems->add_option("--rounds", o.rounds, "of the race")->check(CLI::Range(1, 10000))->needs(contenders);
  CLI::App* const list = app.add_subcommand("list", "the steps of this program");
  list->add_option("--backend", o.backend, "cuda, emulator or auto");
  CLI::App* const info = app.add_subcommand("info", "device and build");
  info->add_option("--backend", o.backend, "cuda, emulator or auto");

  if (argc > 1 && argv[1][0] != '-' &&
      app.get_subcommands([&](CLI::App* c) { return c->get_name() == argv[1]; }).empty())
    throw UsageError("unknown command '" + std::string(argv[1]) +
                     "'; it is one of run, check, bench, count, trace, problems, list, info");
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    std::cout << app.help();
    return {o, true};
  } catch (const CLI::CallForAllHelp&) {
    std::cout << app.help("", CLI::AppFormatMode::All);
    return {o, true};
  } catch (const CLI::ParseError& error) {
    std::string line = error.what();
    std::replace(line.begin(), line.end(), '\n', ' ');
    throw UsageError(line + (app.get_subcommands().empty() ? " (see --help)" : ""));
  }
  const CLI::App& command = *app.get_subcommands().front();
  o.command = command.get_name();
  const auto was_given = [&](const char* option) { return command.count(option) > 0; };

  if (o.backend != "auto" && o.backend != "cuda" && o.backend != "emulator")
    throw UsageError("--backend: unknown value '" + o.backend + "'; it is one of auto, cuda, emulator");
  if (o.command == "list" || o.command == "info") return {o, false};

  o.steps_named = !steps.empty();
  for (const std::string& text : steps) {
    for (const StepChoice& step : find_steps(text)) o.steps.push_back(step);
  }
  o.steps = o.steps_named ? in_order(o.steps) : all_steps();
  if (o.steps.empty() && o.command != "problems") throw UsageError("this program has no steps");
  for (const std::string& mode : o.modes) {
    if (mode != "early" && mode != "late" && mode != "random")
      throw UsageError("--mode: unknown value '" + mode + "'; it is one of early, late, random");
  }
  if (o.modes.empty()) o.modes = {"early", "late", "random"};
  if (o.seeds < 1 || o.seeds > 10000)
    throw UsageError("--seeds is " + std::to_string(o.seeds) + ", it must be 1 to 10000");
  if (o.command != "problems" && (o.rounds < 7 || o.rounds > 10000))
    throw UsageError("--rounds is " + std::to_string(o.rounds) + ", it must be 7 to 10000");
  uint64_t seed = 0;
  const char* const seed_end = seed_text.data() + seed_text.size();
  if (const auto [end, error] = std::from_chars(seed_text.data(), seed_end, seed);
      error != std::errc{} || end != seed_end)
    throw UsageError("--seed is '" + seed_text + "', it must be a number from 0 to 2^64 - 1");
  const double scale = was_given("--softmax-scale") ? parse_scale(scale_text) : 0;
  const auto set_call = [&](Problem& p) {
    p.lse = !no_lse;
    if (scale != 0 && float(scale) != p.softmax_scale()) p.given_scale = scale;
  };
  if (o.command == "trace" && was_given("--cta")) {
    const char* const cta_end = cta_text.data() + cta_text.size();
    if (const auto [end, error] = std::from_chars(cta_text.data(), cta_end, o.cta);
        error != std::errc{} || end != cta_end || o.cta < 0)
      throw UsageError("--cta is '" + cta_text + "', it must be a number from 0 on");
  }
  if (!(o.timeout_seconds >= 1 && o.timeout_seconds <= 86400))
    throw UsageError("--timeout must be 1 to 86400 seconds");
  if (!(o.memory_gib > 0)) throw UsageError("--memory must be more than 0 GiB");

  std::vector<bool> masks;
  if (full || !causal) masks.push_back(false);
  if (causal) masks.push_back(true);
  if (was_given("--tensors")) {
    for (const char* const other : {"--shape", "--grid", "--dtype", "--inputs", "--seed", "--kv-lengths"}) {
      if (was_given(other))
        throw UsageError("--tensors: the file says what the problem is, so " + std::string(other) +
                         " cannot be given as well");
    }
    if (layouts.size() > 1 || (!layouts.empty() && layouts[0] != "bhsd" && layouts[0] != "bshd"))
      throw UsageError("--layout: with --tensors it is the order of the file's axes, one of bhsd, bshd");
    Problem p = problem_of_file(o.tensors_path,
                                layouts.empty() || layouts[0] == "bhsd" ? Layout::kBhsd : Layout::kBshd);
    for (const bool mask : masks) {
      p.causal = mask;
      set_call(p);
      o.problems.push_back(p);
    }
  }

  std::vector<Problem> bases;
  for (const std::string& shape : shapes) bases.push_back(parse_shape(shape));
  if (was_given("--grid")) {
    if (grid != "paper") throw UsageError("--grid: unknown value '" + grid + "'; it is 'paper'");
    for (const Problem& p : paper_grid()) bases.push_back(p);
  }
  const bool any_axis = causal || full || !dtypes.empty() || !layouts.empty() || !lengths.empty() ||
                        !inputs.empty() || was_given("--seed") || no_lse || was_given("--softmax-scale");
  const bool has_sizes = !bases.empty() || !o.problems.empty();
  if (!has_sizes && any_axis)
    throw UsageError(
        "--causal, --full, --dtype, --layout, --kv-lengths, --inputs, --seed, --no-lse and --softmax-scale "
        "need "
        "a --shape or --grid; --causal, --full, --layout, --no-lse and --softmax-scale can have --tensors "
        "instead");
  o.covering = !has_sizes && o.command == "check";

  if (layouts.empty()) layouts = {"bhsd"};
  if (lengths.empty()) lengths = {"full"};
  if (inputs.empty()) inputs = {"normal"};
  for (const Problem& base : bases) {
    for (const std::string& dtype : dtypes.empty() ? std::vector{name(base.dtype)} : dtypes) {
      for (const bool mask : masks) {
        for (const std::string& layout : layouts) {
          for (const std::string& length : lengths) {
            for (const std::string& input : inputs) {
              Problem p = base;
              p.dtype = lookup(dtype_names(), "--dtype", dtype);
              p.causal = mask;
              p.layout = lookup(layout_names(), "--layout", layout);
              p.kv_lengths = lookup(kv_lengths_names(), "--kv-lengths", length);
              p.inputs = lookup(inputs_names(), "--inputs", input);
              p.seed = seed;
              set_call(p);
              if (const std::string error = shape_error(p); !error.empty())
                throw UsageError(p.label() + ": " + error);
              const auto same = [&](const Problem& other) { return other.label() == p.label(); };
              if (std::none_of(o.problems.begin(), o.problems.end(), same)) o.problems.push_back(p);
            }
          }
        }
      }
    }
  }
  if ((o.command == "run" || o.command == "check") && was_given("--save")) {
    check_what_to_save(o);
    o.save_path = AtomicFile::check_writable("--save", o.save_path);
  }
  if (was_given("--json")) o.json_path = AtomicFile::check_writable("--json", o.json_path);
  check_different_files({{"--tensors", o.tensors_path}, {"--save", o.save_path}, {"--json", o.json_path}});
  return {o, false};
}

}  // namespace flashsteps
