#include "harness/device/device_tensors.h"

#include <cstring>

#include "harness/base/element.h"

namespace flashsteps {
namespace {

constexpr size_t kWorkspaceGuardBytes = 256;  // behind the workspace

// One stretch, but for layout `far`: there a row each.
std::vector<DeviceTensors::Piece> pieces_of(const Problem& p, const Placement& host, const Placement& device,
                                            int heads, int rows, size_t buffer_bytes) {
  if (p.layout != Layout::kFar) return {{0, 0, buffer_bytes}};
  const size_t bytes = element_bytes(p.dtype);
  std::vector<DeviceTensors::Piece> pieces;
  for (int b = 0; b < p.batch; ++b) {
    for (int h = 0; h < heads; ++h) {
      for (int i = 0; i < rows; ++i)
        pieces.push_back({(host.row(b, h, i) - kMargin) * bytes, (device.row(b, h, i) - kMargin) * bytes,
                          (p.head_dim + 2 * kMargin) * bytes});
    }
  }
  return pieces;
}

}  // namespace

AttentionCall shape_of_call(const Problem& p) {
  const TensorPlan plan = plan_on_device(p);
  const size_t bytes = element_bytes(p.dtype);
  AttentionCall call{};
  call.dtype = p.dtype;
  call.batch = p.batch;
  call.num_heads_q = p.num_heads_q;
  call.num_heads_kv = p.num_heads_kv;
  call.seqlen_q = p.seqlen_q;
  call.seqlen_kv = p.seqlen_kv;
  call.head_dim = p.head_dim;
  call.causal = p.causal;
  call.softmax_scale = p.softmax_scale();
  // As if every buffer began at address 0: alignment comes out as it will be, since allocations are aligned.
  const auto view = [&](const Placement& at) {
    return TensorView{reinterpret_cast<void*>(at.offset * bytes), at.batch_stride, at.head_stride,
                      at.row_stride};
  };
  call.q = view(plan.q);
  call.k = view(plan.k);
  call.v = view(plan.v);
  call.o = view(plan.o);
  return call;
}

DeviceTensors::DeviceTensors(Backend& backend, Workload& workload)
    : backend_(backend), workload_(workload), call_(shape_of_call(workload.problem())) {
  const Problem& p = workload.problem();
  const TensorPlan &host = workload.plan(), plan = plan_on_device(p);
  const size_t bytes = element_bytes(p.dtype);
  for (size_t buffer = 0; buffer < plan.input_elements.size(); ++buffer) {
    inputs_.push_back(allocate(plan.input_elements[buffer] * bytes));
    const size_t host_bytes = workload.input(int(buffer)).size();
    input_pieces_.push_back(buffer == 0 ? pieces_of(p, host.q, plan.q, p.num_heads_q, p.seqlen_q, host_bytes)
                            : buffer == 1
                                ? pieces_of(p, host.k, plan.k, p.num_heads_kv, p.seqlen_kv, host_bytes)
                                : pieces_of(p, host.v, plan.v, p.num_heads_kv, p.seqlen_kv, host_bytes));
  }
  output_pieces_ = pieces_of(p, host.o, plan.o, p.num_heads_q, p.seqlen_q, host.output_elements * bytes);
  upload_inputs();
  o_ = allocate(plan.output_elements * bytes);
  lse_ = allocate(plan.lse_elements * sizeof(float));
  if (p.kv_lengths != KvLengths::kFull) {
    kv_lengths_ = allocate(p.batch * sizeof(int));
    backend_.upload(kv_lengths_, workload.kv_lengths().data(), p.batch * sizeof(int));
    call_.kv_lengths = static_cast<const int*>(kv_lengths_);
  }
  const auto in = [&](TensorView& view, int buffer) {
    view.data = static_cast<char*>(inputs_[buffer]) + reinterpret_cast<size_t>(view.data);
  };
  in(call_.q, plan.q.buffer);
  in(call_.k, plan.k.buffer);
  in(call_.v, plan.v.buffer);
  call_.o.data = static_cast<char*>(o_) + reinterpret_cast<size_t>(call_.o.data);
  if (p.lse) call_.lse = static_cast<float*>(lse_) + kGuardElements;
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

void DeviceTensors::upload_inputs() {
  for (size_t buffer = 0; buffer < inputs_.size(); ++buffer) {
    for (const auto& [host, device, bytes] : input_pieces_[buffer])
      backend_.upload(static_cast<char*>(inputs_[buffer]) + device,
                      workload_.input(int(buffer)).data() + host, bytes);
  }
}

void DeviceTensors::prepare_for(const Step& step, int configuration) {
  call_.configuration = configuration;
  call_.workspace_bytes = (needed_workspace(step.info, call_) + 15) / 16 * 16;
  if (call_.workspace_bytes <= workspace_capacity_) return;
  call_.workspace = allocate(call_.workspace_bytes + kWorkspaceGuardBytes);
  workspace_capacity_ = call_.workspace_bytes;
}

void DeviceTensors::poison(Poison poison) {
  poison_ = poison;
  if (workload_.poison(poison)) upload_inputs();
  if (call_.workspace_bytes > 0) {
    const std::vector<Poison> words((call_.workspace_bytes + kWorkspaceGuardBytes) / sizeof(Poison), poison);
    backend_.upload(call_.workspace, words.data(), words.size() * sizeof(Poison));
  }
  const Outputs poisoned(workload_.problem(), poison);
  for (const auto& [host, device, bytes] : output_pieces_)
    backend_.upload(static_cast<char*>(o_) + device, poisoned.o.data() + host, bytes);
  backend_.upload(lse_, poisoned.lse.data(), poisoned.lse.size());
}

Outputs DeviceTensors::download_outputs() const {
  Outputs outputs(workload_.problem(), poison_);
  for (const auto& [host, device, bytes] : output_pieces_)
    backend_.download(outputs.o.data() + host, static_cast<const char*>(o_) + device, bytes);
  backend_.download(outputs.lse.data(), lse_, outputs.lse.size());
  return outputs;
}

std::string DeviceTensors::changed_input() const {
  if (call_.workspace_bytes > 0) {
    Poison guard[kWorkspaceGuardBytes / sizeof(Poison)];
    backend_.download(guard, static_cast<char*>(call_.workspace) + call_.workspace_bytes, sizeof guard);
    for (const Poison word : guard) {
      if (word != poison_) return "something was written beyond the workspace";
    }
  }
  const std::vector<std::string> names = inputs_.size() == 1
                                             ? std::vector<std::string>{"the fused qkv tensor"}
                                             : std::vector<std::string>{"q", "k", "v"};
  for (size_t buffer = 0; buffer < inputs_.size(); ++buffer) {
    const auto expected = workload_.input(int(buffer));
    std::vector<unsigned char> now(expected.size());
    bool same = true;
    for (const auto& [host, device, bytes] : input_pieces_[buffer]) {
      backend_.download(&now[host], static_cast<const char*>(inputs_[buffer]) + device, bytes);
      same = same && std::memcmp(&now[host], &expected[host], bytes) == 0;
    }
    if (!same) return names[buffer] + " was modified: inputs are read-only";
  }
  if (kv_lengths_ != nullptr) {
    std::vector<int> now(workload_.kv_lengths().size());
    backend_.download(now.data(), kv_lengths_, now.size() * sizeof(int));
    if (now != workload_.kv_lengths()) return "kv_lengths was modified: inputs are read-only";
  }
  return "";
}

}  // namespace flashsteps
