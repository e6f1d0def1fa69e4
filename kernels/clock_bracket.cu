// arch: 75+
// An SM's clock and the GPU's time at one moment, on every SM: two launches around work give the clock between them.

struct Tick {
    u64 clock, time_ns;
    u32 sm, unused;
};

// One block an SM. Waits for a step of the GPU's time, which on some GPUs is a microsecond, and reads the clock at it.
extern "C" __global__ void tick(Tick *ticks) {
    if (threadIdx.x > 0) return;
    u64 before_ns = globaltimer_ns(), time_ns = before_ns;
    while (time_ns == before_ns) time_ns = globaltimer_ns();
    u64 clock = clock64();
    ticks[blockIdx.x] = {clock, time_ns, smid(), 0};
}
