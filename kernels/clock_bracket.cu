// arch: 75+
// Reads the cycle counter of every SM and the GPU's time at one moment. Launches before and after some work give the
// mean SM clock in between.

struct Tick {
    u64 clock, time_ns;
    u32 sm, unused;
};

// One block for each SM. Waits for a step of the GPU's time, which takes a microsecond on some GPUs, and then reads the
// SM's clock.
extern "C" __global__ void tick(Tick *ticks) {
    if (threadIdx.x > 0) return;
    u64 before_ns = globaltimer_ns(), time_ns = before_ns;
    while (time_ns == before_ns) time_ns = globaltimer_ns();
    u64 clock = clock64();
    ticks[blockIdx.x] = {clock, time_ns, smid(), 0};
}
