#include "harness/device/device_tensors.h"

#include <algorithm>
#include <cstring>

#include "harness/base/element.h"

namespace flashsteps {

constexpr size_t kGuardBytes = 256;  // behind the workspace, and behind the counters

// Its memory stands for being there.
static PageTable page_table_of(const Problem& p) {
  if (p.page_size == 0) return {};
  return {.pages = reinterpret_cast<const int*>(kWorkspaceAlignment),
          .max_pages = p.max_pages(),
          .page_size = p.page_size,
          .num_pages = p.num_pages()};
}

AttentionCall shape_of_call(const Problem& p) {
  const TensorPlan plan = plan_on_device(p);
  // As if every buffer began at address 0: alignment comes out as it will be, since allocations are aligned.
  const auto view = [](const Placement& at, DType dtype) {
    return TensorView{reinterpret_cast<void*>(at.offset * element_bytes(dtype)), at.batch_stride,
                      at.head_stride, at.row_stride};
  };
  return {.dtype = p.dtype,
          .batch = p.batch,
          .num_heads_q = p.num_heads_q,
          .num_heads_kv = p.num_heads_kv,
          .seqlen_q = p.seqlen_q,
          .seqlen_kv = p.seqlen_kv,
          .head_dim = p.head_dim,
          .causal = p.causal,
          .softmax_scale = p.softmax_scale(),
          .q = view(plan.q, p.dtype),
          .k = view(plan.k, p.kv_dtype()),
          .v = view(plan.v, p.kv_dtype()),
          .o = view(plan.o, output_type(p.dtype)),
          .lse = nullptr,
          .kv_lengths = nullptr,
          .page_table = page_table_of(p),
          .fast = p.fast,
          .fp8_cache = p.fp8_cache,
          .quantize = p.quantize,
          .backward = p.backward,
          .d_o = view(plan.d_o, p.dtype),
          .dq = view(plan.dq, p.dtype),
          .dk = view(plan.dk, p.dtype),
          .dv = view(plan.dv, p.dtype)};
}

DeviceTensors::DeviceTensors(Backend& backend, Workload& workload)
    : backend_(backend), workload_(workload), call_(shape_of_call(workload.problem())) {
  const Problem& p = workload.problem();
  if (backend.emulator() != nullptr) backend.emulator()->set_num_sms(p.num_sms);
  const TensorPlan &host = workload.plan(), device = plan_on_device(p);
  const auto make_buffers = [&](const std::vector<PlannedTensor>& tensors,
                                const std::vector<int64_t>& elements, DType first_type, DType other_type) {
    std::vector<Buffer> buffers;
    for (const auto& [name, at] : tensors) {
      const int number = (device.*at).buffer;
      if (number < int(buffers.size()))  // the others' too
        buffers[number].name = "the fused qkv tensor";
      else
        buffers.push_back(
            make_buffer(name, host.*at, device.*at, elements[number], number == 0 ? first_type : other_type));
    }
    return buffers;
  };
  inputs_ = make_buffers(inputs_of(p), device.input_elements, p.dtype, p.kv_dtype());
  outputs_ = make_buffers(outputs_of(p), device.output_elements, output_type(p.dtype), output_type(p.dtype));
  const size_t lse_bytes = device.lse_elements * sizeof(float);
  lse_ = {"lse", allocate(lse_bytes), {{0, 0, lse_bytes}}};
  if (p.kv_lengths != KvLengths::kFull) call_.kv_lengths = uploaded(workload.kv_lengths());
  if (p.kv_dtype() == DType::kE4m3) {
    const auto scales = [&](const std::vector<float>& numbers) {
      if (numbers.empty()) return Descale{};
      return numbers.size() == 1 ? Descale{uploaded(numbers)} : Descale{uploaded(numbers), p.num_heads_kv, 1};
    };
    call_.q_descale = scales(workload.q_descales());
    call_.k_descale = scales(workload.k_descales());
    call_.v_descale = scales(workload.v_descales());
  }
  if (p.page_size != 0)
    call_.page_table.pages = static_cast<const int*>(allocate(workload.page_table().size() * sizeof(int)));
  upload_inputs(/*only_unreadable=*/false);
  const auto in = [](TensorView& view, const Buffer& buffer) {
    view.data = static_cast<char*>(buffer.memory) + reinterpret_cast<size_t>(view.data);
  };
  in(call_.q, inputs_[device.q.buffer]);
  in(call_.k, inputs_[device.k.buffer]);
  in(call_.v, inputs_[device.v.buffer]);
  in(call_.o, (p.backward ? inputs_ : outputs_)[device.o.buffer]);
  if (p.backward) {
    in(call_.d_o, inputs_[device.d_o.buffer]);
    in(call_.dq, outputs_[device.dq.buffer]);
    in(call_.dk, outputs_[device.dk.buffer]);
    in(call_.dv, outputs_[device.dv.buffer]);
  }
  if (p.lse && !p.earlier) call_.lse = static_cast<float*>(lse_.memory) + kGuardElements;
  if (p.earlier) {
    const EarlierResult& earlier = workload.earlier();
    call_.earlier = {static_cast<float*>(allocate(earlier.o.size() * sizeof(float) + kGuardBytes)),
                     static_cast<float*>(allocate(earlier.lse.size() * sizeof(float) + kGuardBytes)),
                     p.seqlen_q + EarlierResult::kSpareRows};
  }
  poison(poison_);
}

DeviceTensors::~DeviceTensors() {
  for (void* const allocation : allocations_) backend_.release(allocation);
}

void* DeviceTensors::allocate(size_t bytes) {
  allocations_.push_back(nullptr);
  const bool sparse = workload_.problem().layout == Layout::kFar;
  return allocations_.back() = sparse ? backend_.allocate_sparse(bytes) : backend_.allocate(bytes);
}

DeviceTensors::Buffer DeviceTensors::make_buffer(const char* name, const Placement& host,
                                                 const Placement& device, int64_t elements, DType dtype) {
  const size_t bytes = element_bytes(dtype);
  Buffer buffer{name, allocate(elements * bytes), {}};
  if (workload_.problem().layout != Layout::kFar) {
    buffer.pieces.push_back({0, 0, elements * bytes});
    return buffer;
  }
  for (const RowId row : host.all_rows()) {
    buffer.pieces.push_back({(host.at(row) - kMargin) * bytes, (device.at(row) - kMargin) * bytes,
                             (host.head_dim + 2 * kMargin) * bytes});
  }
  return buffer;
}

void DeviceTensors::upload(const Buffer& to, std::span<const unsigned char> from) {
  for (const Piece& piece : to.pieces)
    backend_.upload(static_cast<char*>(to.memory) + piece.device, &from[piece.host], piece.bytes);
}

void DeviceTensors::download(std::span<unsigned char> to, const Buffer& from) const {
  for (const Piece& piece : from.pieces)
    backend_.download(&to[piece.host], static_cast<char*>(from.memory) + piece.device, piece.bytes);
}

uint64_t DeviceTensors::checksum_of(const Buffer& buffer) const {
  uint64_t sum = 0;
  for (const Piece& piece : buffer.pieces)
    sum = sum * 31 + backend_.checksum(static_cast<const char*>(buffer.memory) + piece.device, piece.bytes);
  return sum;
}

void DeviceTensors::upload_inputs(bool only_unreadable) {
  constexpr size_t kFew = 64;  // stretches: each is an upload of its own
  for (int i = 0; i < int(inputs_.size()); ++i) {
    Buffer& buffer = inputs_[i];
    const auto& stretches = workload_.unreadable(i);
    if (only_unreadable && buffer.pieces.size() == 1 && stretches.size() <= kFew) {
      for (const auto [begin, end] : stretches)
        backend_.upload(static_cast<char*>(buffer.memory) + begin, &workload_.input(i)[begin], end - begin);
    } else {
      upload(buffer, workload_.input(i));
    }
    buffer.checksum = checksum_of(buffer);
  }
  if (workload_.problem().backward) {
    upload(lse_, workload_.lse());
    lse_.checksum = checksum_of(lse_);
  }
  const std::vector<int>& table = workload_.page_table();
  if (!table.empty())
    backend_.upload(const_cast<int*>(call_.page_table.pages), table.data(), table.size() * sizeof(int));
}

void DeviceTensors::prepare_for(const Step& step, int configuration) {
  call_.configuration = configuration;
  call_.workspace_bytes = (needed_workspace(step.info, call_) + 15) / 16 * 16;
  if (call_.workspace_bytes > workspace_capacity_) {
    workspace_ = allocate(call_.workspace_bytes + kGuardBytes);
    workspace_capacity_ = call_.workspace_bytes;
  }
  call_.workspace = workspace_;
  if (step.info.uses_counters && counters_ == nullptr)
    counters_ = static_cast<unsigned*>(allocate(kCounterBytes + kGuardBytes));
  call_.counters = step.info.uses_counters ? counters_ : nullptr;
  clear_counters();  // a benchmark poisons nothing
}

void DeviceTensors::clear_counters() {
  static const std::vector<unsigned> zeros(kNumCounters);
  if (call_.counters != nullptr) upload_guarded(call_.counters, zeros.data(), kCounterBytes);
}

void DeviceTensors::upload_guarded(void* to, const void* from, size_t bytes) {
  std::vector<Poison> words((bytes + kGuardBytes) / sizeof(Poison), poison_);
  std::memcpy(words.data(), from, bytes);
  backend_.upload(to, words.data(), words.size() * sizeof(Poison));
}

void DeviceTensors::poison(Poison poison) {
  poison_ = poison;
  if (workload_.poison(poison)) upload_inputs(/*only_unreadable=*/true);
  if (call_.workspace_bytes > 0) {
    const std::vector<Poison> words(call_.workspace_bytes / sizeof(Poison), poison_);
    upload_guarded(call_.workspace, words.data(), call_.workspace_bytes);
  }
  clear_counters();
  if (workload_.problem().earlier) {
    const EarlierResult& earlier = workload_.earlier();
    upload_guarded(call_.earlier.o, earlier.o.data(), earlier.o.size() * sizeof(float));
    upload_guarded(call_.earlier.lse, earlier.lse.data(), earlier.lse.size() * sizeof(float));
  }
  const Outputs poisoned(workload_.problem(), poison);
  for (size_t i = 0; i < outputs_.size(); ++i) upload(outputs_[i], poisoned.buffers[i]);
  if (!workload_.problem().backward) upload(lse_, poisoned.lse);
}

Outputs DeviceTensors::download_outputs() const {
  Outputs outputs(workload_.problem(), poison_);
  for (size_t i = 0; i < outputs_.size(); ++i) download(outputs.buffers[i], outputs_[i]);
  if (!workload_.problem().backward) download(outputs.lse, lse_);
  if (workload_.problem().earlier) {
    outputs.earlier = workload_.earlier();
    for (const auto& [to, from] :
         {std::pair(&outputs.earlier.o, call_.earlier.o), std::pair(&outputs.earlier.lse, call_.earlier.lse)})
      backend_.download(to->data(), from, to->size() * sizeof(float));
  }
  return outputs;
}

// Is nothing written behind so many bytes?
bool DeviceTensors::is_guarded(const void* memory, size_t bytes) const {
  Poison guard[kGuardBytes / sizeof(Poison)];
  backend_.download(guard, static_cast<const char*>(memory) + bytes, sizeof guard);
  return std::ranges::all_of(guard, [&](Poison word) { return word == poison_; });
}

template <typename Number>
const Number* DeviceTensors::uploaded(const std::vector<Number>& numbers) {
  const size_t bytes = numbers.size() * sizeof(Number);
  // The emulator stops a kernel that reads beyond them. On a GPU it finds numbers that are wrong for sure.
  const bool is_gpu = backend_.emulator() == nullptr;
  void* const memory = allocate(bytes + (is_gpu ? kGuardBytes : 0));
  is_gpu ? upload_guarded(memory, numbers.data(), bytes) : backend_.upload(memory, numbers.data(), bytes);
  return static_cast<const Number*>(memory);
}

template <typename Number>
bool DeviceTensors::holds(const Number* memory, const std::vector<Number>& numbers) const {
  std::vector<Number> now(numbers.size());
  backend_.download(now.data(), memory, now.size() * sizeof(Number));
  return now == numbers;
}

std::string DeviceTensors::changed_input() {
  if (call_.workspace_bytes > 0 && !is_guarded(call_.workspace, call_.workspace_bytes))
    return "something was written beyond the workspace";
  if (call_.counters != nullptr) {
    if (!is_guarded(call_.counters, kCounterBytes)) return "something was written beyond the counters";
    unsigned now[kNumCounters];
    backend_.download(now, call_.counters, sizeof now);
    if (std::ranges::any_of(now, [](unsigned counter) { return counter != 0; }))
      return "the counters were not left zero";
  }
  if (workload_.problem().earlier) {
    const EarlierResult& before = workload_.earlier();
    if (!is_guarded(call_.earlier.o, before.o.size() * sizeof(float)) ||
        !is_guarded(call_.earlier.lse, before.lse.size() * sizeof(float)))
      return "something was written beyond the earlier result";
    const Problem& p = workload_.problem();
    const EarlierResult now = download_outputs().earlier;
    for (const RowId head : Rows(p.batch, p.num_heads_q, 1)) {
      const size_t spare = EarlierResult::at(p, {head.b, head.h, p.seqlen_q}), d = p.head_dim;
      constexpr size_t kBytes = EarlierResult::kSpareRows * sizeof(float);
      if (std::memcmp(&now.lse[spare], &before.lse[spare], kBytes) != 0 ||
          std::memcmp(&now.o[spare * d], &before.o[spare * d], kBytes * d) != 0)
        return "rows of the earlier result that are not the call's were modified";
    }
  }
  std::vector<const Buffer*> inputs;
  for (const Buffer& input : inputs_) inputs.push_back(&input);
  if (workload_.problem().backward) inputs.push_back(&lse_);
  for (const Buffer* const input : inputs) {
    if (checksum_of(*input) == input->checksum) continue;
    upload_inputs(/*only_unreadable=*/false);  // or all that come after would pay for it
    return input->name + " was modified: inputs are read-only";
  }
  if (call_.kv_lengths != nullptr && !holds(call_.kv_lengths, workload_.kv_lengths()))
    return "kv_lengths was modified: inputs are read-only";
  for (const auto& [descale, numbers] : {std::pair(&call_.q_descale, &workload_.q_descales()),
                                         std::pair(&call_.k_descale, &workload_.k_descales()),
                                         std::pair(&call_.v_descale, &workload_.v_descales())}) {
    if (descale->data != nullptr && !holds(descale->data, *numbers))
      return "the scales of q, k or v were modified: inputs are read-only";
  }
  if (call_.page_table.pages != nullptr && !holds(call_.page_table.pages, workload_.page_table()))
    return "the page table was modified: inputs are read-only";
  return "";
}

}  // namespace flashsteps
