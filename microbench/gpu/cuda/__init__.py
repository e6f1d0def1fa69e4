"""The real GPU: context, launches, device timing, and the experiments of each suite."""
