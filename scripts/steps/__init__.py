"""The ground floor: what the kernels' sources say."""
