// What is declared there is in common/emulator/cuda_driver.h.
#pragma once

#include "common/cuda.h"
