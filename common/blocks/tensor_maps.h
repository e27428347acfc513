// What TMA must know about a call's tensors. Spelled out in v16_producer_warpgroup.
#pragma once

#include "common/attention.h"
#include "common/tma.h"

namespace flashsteps {
inline namespace FLASHSTEPS_BACKEND {

struct TensorMaps {
  TensorMap q, k, v, o;
};

// On the host. A box is a tile: Q for Q and O, KV for K and V.
template <typename Q, typename KV, typename Element>
TensorMaps make_tensor_maps(const AttentionParams<Element>& params) {
  return {.q = make_tensor_map<Q>(params.q),
          .k = make_tensor_map<KV>(params.k),
          .v = make_tensor_map<KV>(params.v),
          .o = make_tensor_map<Q>(params.o)};
}

}  // namespace FLASHSTEPS_BACKEND
}  // namespace flashsteps
