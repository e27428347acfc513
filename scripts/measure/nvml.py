"""The driver's management library: clocks, and the driver's version."""
from __future__ import annotations

import ctypes


class Nvml:
    """The driver's management library, without a Python package. Every answer may be None."""

    SM_CLOCK = 1  # NVML_CLOCK_SM

    def __init__(self, pci_bus_id: str, library: str = "libnvidia-ml.so.1"):
        self.device = self.library = None
        try:
            loaded = ctypes.CDLL(library)
            if loaded.nvmlInit_v2() != 0:
                return
            self.library = loaded
            device = ctypes.c_void_p()
            if loaded.nvmlDeviceGetHandleByPciBusId_v2(pci_bus_id.encode(), ctypes.byref(device)) == 0:
                self.device = device
        except (OSError, AttributeError):
            return

    def clock(self, function: str) -> int | None:
        mhz = ctypes.c_uint(0)
        if self.device is None:
            return None
        try:
            status = getattr(self.library, function)(self.device, self.SM_CLOCK, ctypes.byref(mhz))
        except AttributeError:
            return None
        return mhz.value if status == 0 and mhz.value > 0 else None

    def sm_clock_mhz(self) -> int | None:
        return self.clock("nvmlDeviceGetClockInfo")

    def max_sm_clock_mhz(self) -> int | None:
        return self.clock("nvmlDeviceGetMaxClockInfo")

    def driver_version(self) -> str | None:
        version = ctypes.create_string_buffer(80)  # NVML_SYSTEM_DRIVER_VERSION_BUFFER_SIZE
        if self.library is None:
            return None
        try:
            status = self.library.nvmlSystemGetDriverVersion(version, len(version))
        except AttributeError:
            return None
        return version.value.decode() or None if status == 0 else None
