// What flashsteps/_emulate.py asks of harness/emulate/.
#pragma once

#include <nanobind/nanobind.h>

namespace flashsteps::python {

void define_emulate(nanobind::module_& m);

}  // namespace flashsteps::python
