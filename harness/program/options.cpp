#include "harness/program/options.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <filesystem>
#include <iterator>
#include <limits>

#include "harness/base/atomic_file.h"
#include "harness/base/text.h"
#include "harness/device/tuning.h"
#include "harness/emulate/findings.h"
#include "harness/problem/shapes.h"

namespace flashsteps {
namespace {

// The texts of --help, in two columns; those of CLI11 know no width, and put the values that an option takes
// into the first one.
class Help : public CLI::Formatter {
 public:
  std::string make_option(const CLI::Option* option, bool is_positional) const override {
    const std::string type = option->get_type_name();  // "NAME:{fp16,bf16}"
    const size_t colon = std::min(type.find(':'), type.size());
    std::string values = colon < type.size() ? type.substr(colon + 1) : "";
    for (size_t at = 0; (at = values.find(',', at)) != std::string::npos; at += 2)
      values.insert(at + 1, " ");  // where the line may end
    std::vector<std::string> names;
    for (const std::string& name : option->get_snames()) names.push_back("-" + name);
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
    const std::string name = is_positional ? option->get_name(true) : join(names, ", ");
    const std::string kind = type.substr(0, colon);  // CLI11 calls numbers INT, UINT and FLOAT
    const bool is_number = kind == "INT" || kind == "UINT" || kind == "FLOAT";
    return row(name + (is_positional || kind.empty() ? ""
                       : is_number                   ? " N"
                                                     : " " + kind),
               option->get_description() + (values.empty()     ? ""
                                            : values[0] == '{' ? " " + values
                                                               : " (" + values + ")"));
  }
  std::string make_help(const CLI::App* command, std::string name, CLI::AppFormatMode mode) const override {
    std::string text = Formatter::make_help(command, std::move(name), mode);
    for (size_t at; (at = text.find("\n\n\n")) != std::string::npos;) text.erase(at, 1);  // one empty line
    while (text.ends_with("\n\n")) text.pop_back();
    return text;
  }
  std::string make_subcommand(const CLI::App* command) const override {
    return row(command->get_name(), command->get_description());
  }

 private:
  static std::string row(const std::string& name, const std::string& text) {
    constexpr size_t kText = 26;  // where the second column begins
    std::string line = "  " + name;
    line += line.size() + 2 > kText ? "\n" + std::string(kText, ' ') : std::string(kText - line.size(), ' ');
    return line + wrapped(text, kText, kText) + "\n";
  }
};

// What the command line says of problems, before it is multiplied out.
struct Axes {
  std::vector<std::string> shapes;
  std::string grid;
  std::vector<DType> dtypes;
  std::vector<Layout> layouts;
  std::vector<KvLengths> lengths;
  std::vector<Inputs> inputs;
  std::vector<int> page_sizes;
  std::vector<std::string> caches;
  bool causal = false, full = false, no_lse = false, earlier = false, fast = false, quantize = false;
  bool backward = false;
  int num_sms = 0;
  uint64_t seed = 1;
  double scale = 0;
};

// A decimal number. CLI11's own Range lets NaN pass, takes 2^64 for 2^64 - 1, and reads 010 as 8.
template <typename Number>
CLI::Validator in_range(Number low, Number high) {
  std::ostringstream range;
  range << low << " to " << high;
  const auto check = [low, high, range = range.str()](std::string& text) -> std::string {
    Number number{};
    const char* const end = text.data() + text.size();
    const auto [next, error] = std::from_chars(text.data(), end, number);
    if (error != std::errc{} || next != end || !(number >= low && number <= high))
      return "'" + text + "' is not a number from " + range;
    if constexpr (std::is_integral_v<Number>) text = std::to_string(number);
    return "";
  };
  return CLI::Validator(check, range.str());
}

// One value each time: a step's name that follows is not another shape.
template <typename Value>
CLI::Option* add_repeatable(CLI::App* c, const char* option, std::vector<Value>& values,
                            const std::string& help) {
  return c->add_option(option, values, help + " (repeatable)")->allow_extra_args(false);
}

// By name. (CLI11 applies the last transformation first.)
template <typename Enum>
CLI::Option* add_axis(CLI::App* c, const char* option, std::vector<Enum>& values,
                      const std::vector<std::pair<std::string, Enum>>& names, const std::string& help) {
  return add_repeatable(c, option, values, help)
      ->type_name("NAME")
      ->transform(CLI::Transformer(names).description(""))
      ->transform(CLI::IsMember(names));
}

void add_backend(CLI::App* c, Options& o) {
  c->add_option("--backend", o.backend, "where to run; auto takes the GPU if there is one")
      ->type_name("NAME")
      ->check(CLI::IsMember({"auto", "cuda", "emulator"}));
}

void add_problem_options(CLI::App* c, Axes& axes, Options& o) {
  c->option_defaults()->group("Problems");
  add_repeatable(c, "--shape", axes.shapes, kShapeForms)->type_name("NUMBERS");
  c->add_option(
       "--grid", axes.grid,
       "paper: the shapes of the FlashAttention paper, batch * seqlen = 16,384, heads * head_dim = "
       "2,048; decode: one query against 1k to 128k keys, in batches of 1 to 128, up to 256k keys in all; "
       "decode-large: up to 4M; shapes: 1 to 2,048 queries against 1k to 64k keys, short sequences, and few "
       "heads")
      ->type_name("NAME")
      ->check(CLI::IsMember({"paper", "decode", "decode-large", "shapes"}));
  add_axis(c, "--dtype", axes.dtypes, kDTypeNames, "element type of q, k, v and o");
  add_repeatable(c, "--cache", axes.caches, "element type of k and v: that of q, or e4m3")
      ->type_name("NAME")
      ->check(CLI::IsMember({"q", "e4m3"}));
  add_axis(c, "--kv-lengths", axes.lengths, kKvLengthsNames, "how many keys each batch has");
  add_axis(c, "--inputs", axes.inputs, kInputsNames, "what q, k and v hold");
  c->add_option("--seed", axes.seed, "seed of the inputs")
      ->transform(in_range<uint64_t>(0, std::numeric_limits<uint64_t>::max()));
  add_repeatable(c, "--page-size", axes.page_sizes,
                 "K and V lie in pages of so many keys, in random order, and are found by a page table")
      ->transform(in_range(1, 1 << 20));
  c->add_flag("--causal", axes.causal, "causal mask, aligned bottom-right (with --full: both)");
  c->add_flag("--full", axes.full, "no mask (the default)");
  add_axis(c, "--layout", axes.layouts, kLayoutNames, "memory layout of q, k, v and o");
  c->add_flag("--no-lse", axes.no_lse, "do not compute the log-sum-exp");
  c->add_flag("--earlier", axes.earlier, "merge the result with an earlier one, over other keys");
  c->add_flag("--fast", axes.fast, "e4m3: an approximation will do; q and k are at most 14");
  c->add_flag("--quantize", axes.quantize, "fp16 and bf16: the step rounds q, k and v to e4m3");
  c->add_flag("--backward", axes.backward,
              "the gradients of q, k and v, from those of o; o and lse are inputs");
  c->add_option("--num-sms", axes.num_sms, "emulator: on how many SMs steps think that they run")
      ->transform(in_range(1, 1024));
  c->add_option("--softmax-scale", axes.scale, "factor of the scores (default: 1 / sqrt(D))")
      ->transform(in_range(1e-30, 1e30));  // those that a step takes: see refusal() in interface.cpp
  c->option_defaults()->group("Options");
  c->add_option("--json", o.json_path, "write the results to this file")->type_name("FILE");
}

void add_run_options(CLI::App* c, Axes& axes, Options& o, std::vector<std::string>& steps, bool isolated) {
  c->add_option(
      "STEP", steps,
      "which steps, e.g. v02_smem_tiles or v02 (default: all); v20@128x64 is v20 in its configuration "
      "128x64, v20@all is v20 in each of its configurations");
  add_backend(c, o);
  add_problem_options(c, axes, o);
  c->add_option(
       "--timeout", o.timeout_seconds,
       "a step that gives no sign of life for so many seconds counts as hung; time in which it had no "
       "core does not count (worker processes only; default: 120)")
      ->transform(in_range(1.0, 86400.0));
  c->add_flag("--verbose", o.verbose, "print every problem");
  if (isolated)
    c->add_flag("--in-process", o.in_process, "start no worker processes (for debuggers and profilers)");
}

void add_timing_options(CLI::App* c, Options& o) {
  const bool is_tune = c->get_name() == "tune";
  c->option_defaults()->group("Timing");
  if (!is_tune)
    c->add_flag("--tuned", o.tuned, "take the configurations that tune has kept, where it has kept one");
  c->add_option("--tuning", o.tuning_path,
                is_tune ? "keep them in this file (default: $FLASHSTEPS_TUNING, or "
                          "flashsteps/tuning.json in $XDG_CACHE_HOME or ~/.cache)"
                        : "--tuned, from this file (default: that of tune)")
      ->type_name("FILE");
  c->add_option("--rounds", o.rounds, "how many samples of each step to take (default: 7)")
      ->transform(in_range(7, 10000));
  c->add_flag("--cold-l2", o.cold_l2, "flush L2 before every launch that is timed, outside of its time");
}

void add_modes(CLI::App* c, Options& o, const std::string& help, const std::string& seeds_help) {
  add_repeatable(c, "--mode", o.modes, help)
      ->type_name("NAME")
      ->check(CLI::IsMember({"early", "late", "random"}));
  c->add_option("--seeds", o.seeds, seeds_help)->transform(in_range(1, 10000));
}

void add_check_options(CLI::App* c, Options& o) {
  c->option_defaults()->group("Checks");
  add_modes(c, o, "emulator: when copies complete, and in which order threads run (default: all)",
            "emulator: how many random orders to try per problem (default: 1)");
  c->add_flag("!--no-race-detector", o.race_detector, "emulator: do not look for races (faster)");
  c->add_option("--memory", o.memory_gib,
                "GiB of device memory that a problem may take; the sample skips larger ones")
      ->transform(in_range(1e-6, 1e6));
}

void add_emulate_options(CLI::App* c, Options& o) {
  c->add_option("FILE", o.program, "a .cu file with a main function")->required();
  c->add_option("ARGUMENT", o.arguments, "what the program gets; behind a -- if they begin with a -");
  add_modes(c, o, "when copies complete, and in which order threads run (default: early)",
            "how many random orders to try (default: 1)");
  add_repeatable(c, "--report", o.reports,
                 "write the findings to this file: JSON if its name ends in .json, SARIF if in .sarif")
      ->type_name("FILE");
  add_repeatable(c, "-I", o.include_folders, "a folder with headers")->type_name("FOLDER");
  add_repeatable(c, "-D", o.macros, "a macro, NAME or NAME=VALUE")->type_name("MACRO");
}

void add_commands(CLI::App& app, Options& o, Axes& axes, std::vector<std::string>& steps, bool isolated) {
  const auto add_command = [&](const char* name, const char* help) {
    CLI::App* const c = app.add_subcommand(name, help);
    add_run_options(c, axes, o, steps, isolated);
    return c;
  };
  add_timing_options(add_command("run", "validate steps, then time them on a GPU or count on the emulator"),
                     o);
  add_check_options(
      add_command("check", "only validate steps; without a shape, on the covering sample of problems"), o);
  add_timing_options(add_command("bench", "time the steps that pass, taking turns (GPU)"), o);
  add_timing_options(
      add_command(
          "tune",
          "time steps in each of their configurations, and keep the fastest one for such calls (GPU)"),
      o);
  add_command("count", "count exactly what steps do: instructions, memory transactions, barriers (emulator)");
  add_command("trace", "draw who waits for whom in one CTA, or write it to a file for Perfetto (emulator)")
      ->add_option("--cta", o.cta, "which CTA, counted along x, then y, then z (default: the last one)")
      ->transform(in_range<int64_t>(0, std::numeric_limits<int64_t>::max()));
  add_emulate_options(
      app.add_subcommand("emulate", "compile a CUDA program of your own for the emulator, and run it"), o);
  CLI::App* const list = app.add_subcommand("list", "list the steps of this program and what they need");
  list->add_option("STEP", steps, "which steps (default: all)");
  list->add_flag("--short", o.is_short, "only their names and titles");
  add_backend(list, o);
  CLI::App* const source = app.add_subcommand(
      "source", "print a step as one .cu file, which nvcc compiles without this repository");
  source->add_option("STEP", steps, "which step, e.g. v02_smem_tiles or v02");
  source->add_flag("--main", o.with_main, "with a main function that checks one small problem");
  add_backend(app.add_subcommand("info", "describe the device and the build; on a GPU, measure its ceilings"),
              o);
}

// What is said of an option that the command has not.
std::string unexpected(const CLI::App& app) {
  const CLI::App& command = app.get_subcommands().empty() ? app : *app.get_subcommands().front();
  std::vector<std::string> options;
  for (const CLI::Option* const option : command.get_options()) {
    for (const std::string& name : option->get_lnames()) options.push_back("--" + name);
  }
  const std::string word = app.remaining(/*recurse=*/true).front();
  return "unexpected argument '" + word + "'" + did_you_mean(word, options) + " (see " +
         (&command == &app ? "" : command.get_name() + " ") + "--help)";
}

// The command that was given; nullptr when it was --help, which has been answered.
const CLI::App* parse(CLI::App& app, int argc, const char* const* argv) {
  std::vector<std::string> commands;
  for (const CLI::App* const c : app.get_subcommands({})) commands.push_back(c->get_name());
  if (argc < 2) throw UsageError("a command is missing: " + join(commands, ", ") + " (see --help)");
  if (argv[1][0] != '-' && std::ranges::find(commands, argv[1]) == commands.end()) {
    const std::string typed = argv[1];
    const auto is_meant = [&](const StepChoice& step) {
      return !typed.empty() && step.name.starts_with(typed);
    };
    throw UsageError("unknown command '" + typed + "'" +
                     (std::ranges::any_of(all_steps(), is_meant) ? "; did you mean run " + typed + "?"
                                                                 : did_you_mean(typed, commands)) +
                     " (see --help)");
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& asked_for_help) {
    app.exit(asked_for_help);
    return nullptr;
  } catch (const CLI::ExtrasError&) {
    throw UsageError(unexpected(app));
  } catch (const CLI::ParseError& error) {
    std::string line = error.what();
    std::ranges::replace(line, '\n', ' ');
    throw UsageError(line + (app.get_subcommands().empty() ? " (see --help)" : ""));
  }
  return app.get_subcommands().front();
}

bool was_given(const CLI::App& command, const char* option) {
  const CLI::Option* const known = command.get_option_no_throw(option);
  return known != nullptr && known->count() > 0;
}

void set_call(const Axes& axes, Problem& p) {
  p.lse = !axes.no_lse;
  p.earlier = axes.earlier;
  p.fast = axes.fast;
  p.quantize = axes.quantize;
  p.backward = axes.backward;
  p.num_sms = axes.num_sms;
  const double scale = nine_digits(axes.scale);
  if (scale != 0 && float(scale) != p.softmax_scale()) p.given_scale = scale;
}

// Each problem with each of the values; without any, the problems as they are.
template <typename Value>
void multiply(std::vector<Problem>& problems, Value Problem::*axis, const std::vector<Value>& values) {
  if (values.empty()) return;
  std::vector<Problem> product;
  for (const Problem& problem : problems) {
    for (const Value value : values) product.emplace_back(problem).*axis = value;
  }
  problems = std::move(product);
}

// The problems of --shape and --grid, times all axes; each once.
std::vector<Problem> problems_of_shapes(const Axes& axes) {
  std::vector<Problem> all, problems;
  for (const std::string& shape : axes.shapes) all.push_back(parse_shape(shape));
  if (!axes.grid.empty())
    std::ranges::copy(axes.grid == "paper"    ? paper_grid()
                      : axes.grid == "shapes" ? shapes_grid()
                                              : decode_grid(axes.grid == "decode" ? 1 << 18 : 1 << 22),
                      std::back_inserter(all));
  multiply(all, &Problem::dtype, axes.dtypes);
  multiply(all, &Problem::causal,
           axes.full && axes.causal ? std::vector{false, true} : std::vector{axes.causal});
  multiply(all, &Problem::layout, axes.layouts);
  multiply(all, &Problem::kv_lengths, axes.lengths);
  multiply(all, &Problem::inputs, axes.inputs);
  multiply(all, &Problem::page_size, axes.page_sizes);
  std::vector<bool> fp8_caches;
  for (const std::string& type : axes.caches) fp8_caches.push_back(type == "e4m3");
  multiply(all, &Problem::fp8_cache, fp8_caches);
  for (Problem& p : all) {
    p.seed = axes.seed;
    set_call(axes, p);
    if (const std::string error = shape_error(p); !error.empty()) throw UsageError(p.label() + ": " + error);
    if (std::ranges::find(problems, p) == problems.end()) problems.push_back(p);
  }
  return problems;
}

// What tune times: the steps that have several configurations, each as it chooses itself and in each of them.
std::vector<StepChoice> candidates(const std::vector<StepChoice>& steps, bool named) {
  std::vector<StepChoice> all;
  for (const StepChoice& step : steps) {
    if (step.configuration != AttentionCall::kChosenByStep)
      throw UsageError("tune: " + step.name + " is one configuration; name the step alone, " + step.step);
    if (step.info->num_configurations() > 1) {
      all.push_back(step);
      std::ranges::copy(find_steps(step.name + "@all"), std::back_inserter(all));
    } else if (named) {
      throw UsageError("tune: " + step.name + " has only one configuration, there is nothing to choose");
    }
  }
  if (all.empty()) throw UsageError("tune: no step of this program has several configurations");
  return all;
}

void choose_steps(const CLI::App& command, const std::vector<std::string>& texts, Options& o) {
  o.steps_named = !texts.empty();
  for (const std::string& text : texts) std::ranges::copy(find_steps(text), std::back_inserter(o.steps));
  o.steps = o.steps_named ? in_order(o.steps) : all_steps();
  if (o.steps.empty() && command.get_option_no_throw("STEP") != nullptr)
    throw UsageError("this program has no steps");
  if (o.command == "source" &&
      (o.steps.size() != 1 || o.steps[0].configuration != AttentionCall::kChosenByStep))
    throw UsageError("source: name one step, and no configuration");
  if (o.command == "tune") o.steps = candidates(o.steps, o.steps_named);
}

void choose_problems(const CLI::App& command, Axes& axes, Options& o) {
  const auto has_only_fp8 = [](const StepChoice& step) {
    return step.info->dtypes.bits == DTypes{DType::kE4m3}.bits;
  };
  if (axes.dtypes.empty() && !o.steps.empty() && std::ranges::all_of(o.steps, has_only_fp8))
    axes.dtypes = {DType::kE4m3};
  const auto has_fp8_cache = [](const StepChoice& step) { return step.info->fp8_cache; };
  if (axes.caches.empty() && !o.steps.empty() && std::ranges::all_of(o.steps, has_fp8_cache))
    axes.caches = {"e4m3"};
  const auto is_fast = [](const StepChoice& step) { return step.info->fast; };
  axes.fast |= !o.steps.empty() && std::ranges::all_of(o.steps, is_fast);
  const auto has_no_lse = [](const StepChoice& step) { return step.info->no_lse; };
  axes.no_lse |= !o.steps.empty() && std::ranges::all_of(o.steps, has_no_lse);
  const auto quantizes = [](const StepChoice& step) { return step.info->quantizes; };
  axes.quantize |= !o.steps.empty() && std::ranges::all_of(o.steps, quantizes);
  const auto goes_backward = [](const StepChoice& step) { return step.info->backward; };
  axes.backward |= !o.steps.empty() && std::ranges::all_of(o.steps, goes_backward);
  o.problems = problems_of_shapes(axes);
  for (const char* const option : {"--causal", "--full", "--dtype", "--layout", "--kv-lengths", "--inputs",
                                   "--page-size", "--seed", "--no-lse", "--earlier", "--fast", "--cache",
                                   "--quantize", "--backward", "--num-sms", "--softmax-scale"}) {
    if (o.problems.empty() && was_given(command, option))
      throw UsageError(option + std::string(" needs a --shape or --grid"));
  }
  o.covering = o.problems.empty() && o.command == "check";
}

void choose_files(const CLI::App& command, Options& o) {
  if (was_given(command, "--json")) o.json_path = check_writable("--json", o.json_path);
  if (!was_given(command, "--tuning"))
    o.tuning_path = tuning_path();
  else if (o.command != "tune")
    o.tuned = true;
  else
    o.tuning_path = check_writable("--tuning", o.tuning_path);
  if (o.command == "tune" && o.tuning_path.empty())
    throw UsageError(std::string("tune: there is no file to write, ") + kTuningVariable +
                     " is empty or there is no home folder; give one with --tuning");
}

}  // namespace

std::optional<Options> parse_options(int argc, const char* const* argv, bool isolated) {
  Options o;
  o.in_process = !isolated;
  Axes axes;
  std::vector<std::string> steps;
  CLI::App app{"FlashSteps: flash attention, one idea at a time.",
               argc > 0 ? std::filesystem::path(argv[0]).filename().string() : ""};
  app.require_subcommand(1);
  app.formatter(std::make_shared<Help>());
  add_commands(app, o, axes, steps, isolated);
  app.footer(
      "Exit status: 0 all passed; 1 something failed validation or nothing could run; 2 wrong use, or a\n"
      "step named explicitly cannot run here; 3 a step crashed or hung.");
  const CLI::App* const command = parse(app, argc, argv);
  if (command == nullptr) return {};
  o.command = command->get_name();
  if (o.command == "emulate") {
    if (!was_given(*command, "--mode")) o.modes = {"early"};
    for (std::string& path : o.reports) {
      if (!Findings::is_known_format(path))
        throw UsageError("--report " + path + ": the name must end in .json or .sarif");
      path = check_writable("--report", path);
    }
    return o;
  }
  choose_steps(*command, steps, o);
  choose_problems(*command, axes, o);
  choose_files(*command, o);
  return o;
}

}  // namespace flashsteps
