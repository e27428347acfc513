#include "harness/python/src/arguments.h"

#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <stdexcept>
#include <tuple>
#include <vector>

#include "harness/base/text.h"
#include "harness/library/attention.h"

namespace nb = nanobind;

namespace flashsteps::python {
namespace {

[[noreturn]] void raise_type_error(std::string_view argument, const std::string& text) {
  throw nb::type_error((std::string(argument) + ": " + text).c_str());
}

std::string shape_text(const int64_t* shape, int dimensions) {
  std::string text = "[";
  for (int i = 0; i < dimensions; ++i) text += (i > 0 ? ", " : "") + std::to_string(shape[i]);
  return text + "]";
}

// Device types of DLPack.
enum : int32_t { kDlCpu = 1, kDlCuda = 2, kDlCudaHost = 3, kDlCudaManaged = 13 };

int device_number(std::string_view argument, int dlpack_type, int dlpack_id) {
  switch (dlpack_type) {
    case kDlCpu:
    case kDlCudaHost:
      return kCpu;
    case kDlCuda:
    case kDlCudaManaged:
      return dlpack_id;
    default:
      raise_value_error(argument, "is neither on the CPU nor on an NVIDIA GPU (DLPack's device type " +
                                      std::to_string(dlpack_type) + ")");
  }
}

// NumPy's name of a DLPack type.
std::string dtype_text(nb::dlpack::dtype dtype) {
  constexpr const char* kKinds[] = {"int",    "uint",   "float",
                                    "opaque", "bfloat", "complex"};  // by DLPack's code
  const std::string bits = std::to_string(dtype.bits);
  constexpr uint8_t kDlFloat8E4m3fn = 10;  // which nanobind does not know
  if (dtype.lanes != 1) return "a vector type";
  if (dtype.code == uint8_t(nb::dlpack::dtype_code::Bool)) return "bool";
  if (dtype.code == kDlFloat8E4m3fn) return "float8_e4m3fn";
  if (dtype.code < std::size(kKinds)) return kKinds[dtype.code] + bits;
  return "DLPack's type " + std::to_string(dtype.code) + " of " + bits + " bits";
}

// What a framework's describe() in _frameworks.py returns.
using Description =
    std::tuple<uintptr_t, std::vector<int64_t>, std::vector<int64_t>, std::string, int, nb::object>;

std::string device_text(int device) {
  return device == kCpu ? "on the CPU" : "on cuda:" + std::to_string(device);
}

// ---- What is wrong with an argument

constexpr int64_t kMaxLength = 1 << 30;  // rows are counted in int, with room for one tile more

constexpr const char* kFp8 = "float8_e4m3fn";

DType dtype_of(const Array& array, bool may_be_fp8) {
  if (array.dtype == "float16") return DType::kFp16;
  if (array.dtype == "bfloat16") return DType::kBf16;
  if (array.dtype == "float32") return DType::kFp32;
  if (array.dtype == kFp8 && may_be_fp8) return DType::kE4m3;
  raise_type_error(array.argument, "is " + array.dtype + ", expected " +
                                       (may_be_fp8 ? "float16, bfloat16, float32 or float8_e4m3fn"
                                                   : "float16, bfloat16 or float32"));
}

// On the device of q, and aligned to so many bytes.
void check_memory(const Array& array, int64_t alignment, int device) {
  if (array.device != device)
    raise_value_error(array.argument,
                      "is " + device_text(array.device) + ", and q is " + device_text(device));
  if (reinterpret_cast<uintptr_t>(array.data) % alignment != 0)
    raise_value_error(array.argument, "is not aligned to the " + std::to_string(alignment) +
                                          " bytes of its element: copy it, e.g. with .clone() or .copy()");
}

// `cached`: k or v of attention_with_kvcache(), which may be in FP8 where q is not.
void check_tensor(const Array& array, const Array& q, bool may_be_fp8, bool cached = false) {
  const bool fp8 = cached && array.dtype == kFp8;
  const auto bytes = int64_t(element_bytes(fp8 ? DType::kE4m3 : dtype_of(array, may_be_fp8)));
  if (fp8 && q.dtype != "float16" && q.dtype != "bfloat16")
    raise_type_error(array.argument, "is " + array.dtype + ", and q is " + q.dtype +
                                         ": a cache in FP8 is for float16 and bfloat16");
  if (!fp8 && array.dtype != q.dtype)
    raise_type_error(array.argument, "is " + array.dtype + ", and q is " + q.dtype +
                                         (cached ? ": expected that, or float8_e4m3fn" : ""));
  check_memory(array, bytes, q.device);
  if (array.strides[3] != 1 && !array.empty)
    raise_value_error(array.argument, "has rows that are not contiguous (the stride of head_dim is " +
                                          std::to_string(array.strides[3]) +
                                          "): call .contiguous() on it, or copy it");
  if (*std::max_element(array.shape, array.shape + 4) > kMaxLength)
    raise_value_error(array.argument, "has shape " + shape_text(array.shape, 4) + ", the limit is 2^30");
}

// Without queries nothing is computed: then whatever else there is may be empty, too.
void check_not_empty(const Array& array, const Array& q) {
  if (array.empty && !q.empty)
    raise_value_error(array.argument,
                      "has shape " + shape_text(array.shape, array.dimensions) + ", which is empty");
}

// `pages` of K and V belong to no sequence in particular.
void check_shapes(const Array& q, const Array& k, const Array& v, Axes axes, bool pages) {
  const auto expect = [](const Array& array, const char* what, int64_t found, int64_t expected) {
    if (found != expected)
      raise_value_error(array.argument, "has " + std::string(what) + " " + std::to_string(found) +
                                            ", and q has " + std::to_string(expected));
  };
  if (q.shape[3] != 64 && q.shape[3] != 128)
    raise_value_error("q", "has head_dim " + std::to_string(q.shape[3]) + ", the steps support 64 and 128");
  if (!pages) expect(k, "batch", k.shape[0], q.shape[0]);
  expect(k, "head_dim", k.shape[3], q.shape[3]);
  check_not_empty(k, q);
  const int64_t heads_q = q.shape[axes.heads], heads_kv = k.shape[axes.heads];
  if (heads_kv > 0 && heads_q % heads_kv != 0)
    raise_value_error(k.argument, "has " + std::to_string(heads_kv) + " heads, and q has " +
                                      std::to_string(heads_q) + ", which is not a multiple");
  if (!std::equal(k.shape, k.shape + 4, v.shape))
    raise_value_error(v.argument, "has shape " + shape_text(v.shape, 4) + ", and " + k.argument + " has " +
                                      shape_text(k.shape, 4));
}

void check_contiguous(const Array& array) {
  int64_t stride = 1;
  for (int i = array.dimensions - 1; i >= 0; --i) {
    if (array.shape[i] > 1 && array.strides[i] != stride && !array.empty)
      raise_value_error(array.argument, "is not contiguous: call .contiguous() on it, or copy it");
    stride *= array.shape[i];
  }
}

// Of lengths or a page table: a row of `batch` for each of q's.
const int* integers_of(const Array& array, const Array& q) {
  if (array.dtype != "int32") raise_type_error(array.argument, "is " + array.dtype + ", expected int32");
  check_memory(array, sizeof(int32_t), q.device);
  if (array.shape[0] != q.shape[0])
    raise_value_error(array.argument, "has shape " + shape_text(array.shape, array.dimensions) +
                                          ", and the batch is " + std::to_string(q.shape[0]));
  check_not_empty(array, q);
  check_contiguous(array);
  return static_cast<const int*>(array.data);
}

void check_shape(const Array& array, const int64_t* expected) {
  if (!std::equal(array.shape, array.shape + array.dimensions, expected))
    raise_value_error(array.argument, "has shape " + shape_text(array.shape, array.dimensions) +
                                          ", expected " + shape_text(expected, array.dimensions));
}

// d_o, o and lse, where they are arguments.
void read_forward_results(const ReadArray& read, Arguments& a) {
  AttentionCall& call = a.call;
  const struct {
    const char* argument;
    std::optional<Array>& array;
    TensorView& view;
  } tensors[] = {{"d_o", a.d_o, call.d_o}, {"o", a.o, call.o}};
  for (int place = 8; const auto& [argument, array, view] : tensors) {
    array = read(place++, argument, 4);
    check_tensor(*array, a.q, false);
    check_shape(*array, a.q.shape);
    view = view_of(*array, a.axes);
  }
  a.lse = read(10, "lse", 3);
  if (a.lse->dtype != "float32") raise_type_error("lse", "is " + a.lse->dtype + ", expected float32");
  check_memory(*a.lse, sizeof(float), a.q.device);
  const int64_t expected[] = {call.batch, call.num_heads_q, call.seqlen_q};
  check_shape(*a.lse, expected);
  check_contiguous(*a.lse);
  call.lse = static_cast<float*>(a.lse->data);
}

// `k` is [pages, page_size, heads_kv, head_dim].
PageTable page_table_of(const Array& array, const Array& q, const Array& k) {
  const int* const pages = integers_of(array, q);
  const int64_t page_size = k.shape[1], keys = array.shape[1] * page_size;
  if ((page_size & (page_size - 1)) != 0)
    raise_value_error(k.argument,
                      "has pages of " + std::to_string(page_size) + " keys, expected a power of two");
  if (keys > kMaxLength)
    raise_value_error(array.argument, "has shape " + shape_text(array.shape, 2) + ", which is room for " +
                                          std::to_string(keys) + " keys, the limit is 2^30");
  return {pages, int(array.shape[1]), int(page_size), int(k.shape[0])};
}

// Of [batch, num_heads_kv], or of one element, in whatever shape, which is for all.
Descale descale_of(const Array& array, const Array& q, DType of, const AttentionCall& call) {
  if (array.dtype != "float32") raise_type_error(array.argument, "is " + array.dtype + ", expected float32");
  if (of != DType::kE4m3)
    raise_value_error(array.argument, "is given, and q is " + q.dtype + ": only float8_e4m3fn has scales");
  check_memory(array, sizeof(float), q.device);
  const int64_t expected[] = {call.batch, call.num_heads_kv};
  const auto* const end = array.shape + array.dimensions;
  Descale descale{static_cast<const float*>(array.data)};
  if (std::all_of(array.shape, end, [](int64_t extent) { return extent == 1; })) return descale;
  if (!std::equal(array.shape, end, expected, expected + 2))
    raise_value_error(array.argument, "has shape " + shape_text(array.shape, array.dimensions) +
                                          ", expected " + shape_text(expected, 2) +
                                          " (batch and heads of k) or one element");
  // The stride of an axis of extent 1 may be anything.
  descale.batch_stride = call.batch > 1 ? array.strides[0] : 0;
  descale.head_stride = call.num_heads_kv > 1 ? array.strides[1] : 0;
  if (descale.batch_stride < 0 || descale.head_stride < 0)
    raise_value_error(array.argument, "has a negative stride: copy it");
  return descale;
}

// The values on a GPU cannot be read without waiting for it.
void check_values(const Arguments& a) {
  if (a.q.device != kCpu) return;
  for (int b = 0; a.kv_lengths && b < a.call.batch; ++b) {
    const int length = a.call.kv_lengths[b];
    if (length < 0 || length > a.call.seqlen_kv)
      raise_value_error(a.kv_lengths->argument, "[" + std::to_string(b) + "] is " + std::to_string(length) +
                                                    ", expected 0 to " + std::to_string(a.call.seqlen_kv));
  }
  if (const std::string wrong = wrong_page(a.call); !wrong.empty()) raise_value_error("page_table", wrong);
}

float scale_of(std::optional<double> scale, int64_t head_dim) {
  if (!scale) return 1.0f / std::sqrt(float(head_dim));
  const float value = float(*scale);
  if (!(value > 0.0f && std::isfinite(2.0f * value)))  // kernels fold log2(e) into it
    raise_value_error("scale",
                      "is " + format("%g", *scale) + ", expected a positive number that float32 holds");
  return value;
}

}  // namespace

void raise_value_error(std::string_view argument, const std::string& text) {
  throw std::invalid_argument(std::string(argument) + ": " + text);
}

Array::Array(const char* name, void* memory, int on, std::string type, const int64_t* extents, int found,
             const int64_t* steps, int expected)
    : argument(name), data(memory), device(on), dtype(std::move(type)), dimensions(found) {
  const bool any = expected == kAnyDimensions;
  if (any ? found > 4 : found != expected)
    raise_value_error(argument, "has shape " + shape_text(extents, found) + ", expected " +
                                    (any ? "at most 4" : std::to_string(expected)) + " dimensions");
  int64_t stride = 1;
  contiguous = true;
  for (int i = dimensions - 1; i >= 0; --i) {
    shape[i] = extents[i];
    strides[i] = steps != nullptr ? steps[i] : stride;
    contiguous &= strides[i] == stride;
    stride *= shape[i];
  }
  empty = stride == 0;
}

nb::handle interned(const char* name) { return PyUnicode_InternFromString(name); }

Framework::Framework(nb::handle python) : python_(python) {
  static const nb::handle kExchangeApi = interned("exchange_api");
  const nb::object capsule = python.attr(kExchangeApi);
  constexpr const char* kName = "dlpack_exchange_api";
  if (!PyCapsule_IsValid(capsule.ptr(), kName)) return;
  const auto* const api = static_cast<const ExchangeApi*>(PyCapsule_GetPointer(capsule.ptr(), kName));
  if (api->major_version == ExchangeApi::kMajorVersion && api->view != nullptr) exchange_ = api;
}

Array Framework::read(const char* argument, nb::handle object, int dimensions) const {
  const auto with_memory = [&](Array array) {
    if (array.data == nullptr && !array.empty) raise_value_error(argument, "has no memory: its address is 0");
    return array;
  };
  if (exchange_ != nullptr) {
    nb::dlpack::dltensor tensor;
    if (exchange_->view(object.ptr(), &tensor) != 0) {
      nb::python_error error;
      const std::string text = nb::str(error.value()).c_str();  // PyTorch adds a trace, in more lines
      nb::raise_from(error, PyExc_ValueError, "%s: its memory is not accessible: %s", argument,
                     text.substr(0, text.find('\n')).c_str());
    }
    return with_memory({argument, static_cast<char*>(tensor.data) + tensor.byte_offset,
                        device_number(argument, tensor.device.device_type, tensor.device.device_id),
                        dtype_text(tensor.dtype), tensor.shape, tensor.ndim, tensor.strides, dimensions});
  }
  const nb::object described = python_.attr("describe")(argument, object);
  const auto [address, shape, strides, dtype, device, owner] = nb::cast<Description>(described);
  Array array(argument, reinterpret_cast<void*>(address), device, dtype, shape.data(), int(shape.size()),
              strides.data(), dimensions);
  array.owner = owner;
  return with_memory(std::move(array));
}

void* Framework::current_stream(int device) const {
  if (exchange_ == nullptr)
    return reinterpret_cast<void*>(nb::cast<uintptr_t>(python_.attr("current_stream")(device)));
  void* stream = nullptr;
  if (exchange_->current_stream(kDlCuda, device, &stream) != 0) throw nb::python_error();
  return stream;
}

ManagedMemory Framework::allocate(size_t bytes, int device) const {
  if (exchange_ == nullptr || exchange_->allocate == nullptr) return nullptr;
  auto length = int64_t(bytes);
  nb::dlpack::dltensor prototype{.device = {kDlCuda, device},
                                 .ndim = 1,
                                 .dtype = {uint8_t(nb::dlpack::dtype_code::UInt), 8, 1},
                                 .shape = &length};
  ExchangeApi::ManagedTensor* tensor = nullptr;
  const auto not_said = [](void*, const char*, const char*) {};
  if (exchange_->allocate(&prototype, &tensor, nullptr, not_said) != 0) return nullptr;
  return ManagedMemory(tensor);
}

TensorView view_of(const Array& array, Axes axes) {
  return {array.data, array.strides[0], array.strides[axes.heads], array.strides[axes.rows]};
}

Arguments read_arguments(const Options& options, const ReadArray& read) {
  const auto name = [&](const char* of_attention, const char* of_kvcache) {
    return options.kvcache ? of_kvcache : of_attention;
  };
  Arguments a{.q = *read(0, "q", 4),
              .k = *read(1, name("k", "k_cache"), 4),
              .v = *read(2, name("v", "v_cache"), 4),
              .kv_lengths = {},
              .page_table = {},
              .q_descale = {},
              .k_descale = {},
              .v_descale = {},
              .d_o = {},
              .o = {},
              .lse = {},
              .axes = options.layout == "bshd" ? Axes{2, 1} : Axes{1, 2},
              .call = {}};
  const bool may_be_fp8 = !options.kvcache && !options.backward;
  for (const Array* const array : {&a.q, &a.k, &a.v})
    check_tensor(*array, a.q, may_be_fp8, options.kvcache && array != &a.q);
  if (a.v.dtype != a.k.dtype)
    raise_type_error(a.v.argument, "is " + a.v.dtype + ", and " + a.k.argument + " is " + a.k.dtype);
  a.page_table = read(4, "page_table", 2);
  check_shapes(a.q, a.k, a.v, a.axes, a.page_table.has_value());
  AttentionCall& call = a.call;
  call.dtype = dtype_of(a.q, may_be_fp8);
  call.fp8_cache = a.k.dtype != a.q.dtype;
  call.batch = int(a.q.shape[0]);
  call.num_heads_q = int(a.q.shape[a.axes.heads]);
  call.num_heads_kv = int(a.k.shape[a.axes.heads]);
  call.seqlen_q = int(a.q.shape[a.axes.rows]);
  call.seqlen_kv = int(a.k.shape[a.axes.rows]);
  call.head_dim = int(a.q.shape[3]);
  call.causal = options.causal;
  call.softmax_scale = scale_of(options.scale, call.head_dim);
  call.num_splits = options.num_splits;
  call.fast = options.fast;
  call.quantize = options.quantize;
  if (call.quantize && call.dtype != DType::kFp16 && call.dtype != DType::kBf16)
    raise_type_error(a.q.argument, "is " + a.q.dtype + ": quantize=True is for float16 and bfloat16");
  call.q = view_of(a.q, a.axes);
  call.k = view_of(a.k, a.axes);
  call.v = view_of(a.v, a.axes);
  if (a.page_table) {
    call.page_table = page_table_of(*a.page_table, a.q, a.k);
    call.seqlen_kv = call.page_table.max_pages * call.page_table.page_size;
  }
  a.kv_lengths = read(3, name("kv_lengths", "cache_seqlens"), 1);
  if (a.kv_lengths) call.kv_lengths = integers_of(*a.kv_lengths, a.q);
  const struct {
    const char* argument;
    std::optional<Array>& array;
    Descale& descale;
  } descales[] = {{"q_descale", a.q_descale, call.q_descale},
                  {"k_descale", a.k_descale, call.k_descale},
                  {"v_descale", a.v_descale, call.v_descale}};
  for (int place = 5; const auto& [argument, array, descale] : descales) {
    array = read(place++, argument, kAnyDimensions);
    const DType of = &descale == &call.q_descale ? call.dtype : call.kv_dtype();
    if (array) descale = descale_of(*array, a.q, of, call);
  }
  call.backward = options.backward;
  if (call.backward) read_forward_results(read, a);
  check_values(a);
  return a;
}

}  // namespace flashsteps::python
