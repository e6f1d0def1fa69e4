// arch: 75+
// Kernels of the launch suite: empty ones, spin kernels, flags, gates and stamps.

__device__ __forceinline__ u32 load_acquire_system(const u32 *address) {
    u32 value;
    asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(address) : "memory");
    return value;
}

extern "C" __global__ void empty() {}

// Has the parameter list that Python layers pack, and touches nothing.
extern "C" __global__ void four_arguments(float *a, float *b, float *c, int n) {}

// Every thread adds to a word of its own. Two functions, so that a chain can alternate between functions.
extern "C" __global__ void add_1(u32 *words) { words[blockIdx.x * blockDim.x + threadIdx.x] += 1; }
extern "C" __global__ void add_2(u32 *words) { words[blockIdx.x * blockDim.x + threadIdx.x] += 2; }

// Every thread spins for the same number of SM clock cycles.
extern "C" __global__ void spin(u64 cycles) { spin_for(clock64(), cycles); }

// Writes a value to host memory as its first instruction. The store is volatile, because a release store would add a
// fence.
extern "C" __global__ void mark(volatile u32 *flag, u32 value) {
    if (threadIdx.x == 0) *flag = value;
}

// Holds its stream until the flag reaches `want` or its own time-out has passed. `want` increases with each gate, so
// that an old gate never holds a new batch. `late` counts the time-outs, which make a sample invalid.
extern "C" __global__ void gate(const u32 *flag, u32 want, u64 timeout_ns, u32 *late) {
    u64 begin = globaltimer_ns();
    while ((int)(load_acquire_system(flag) - want) < 0) {
        if (globaltimer_ns() - begin > timeout_ns) {
            *late += 1;
            break;
        }
    }
}

// Records %globaltimer at its begin and end, and spins for `cycles` in between. Block b of call i has two words of
// `out`. A `dependent` one is launched with programmatic stream serialisation: it lets its successor start at once and
// waits for its predecessor before it ends.
template <bool dependent>
__device__ __forceinline__ void record_begin_and_end(u64 *out, u64 index, u64 cycles) {
#if __CUDA_ARCH__ >= 900
    if (dependent) asm volatile("griddepcontrol.launch_dependents;");
#endif
    u64 begin_ns = globaltimer_ns();
    spin_for(clock64(), cycles);
#if __CUDA_ARCH__ >= 900
    if (dependent) asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
    if (threadIdx.x == 0) {
        u64 *slot = out + 2 * (index * gridDim.x + blockIdx.x);
        slot[0] = begin_ns;
        slot[1] = globaltimer_ns();
    }
}

extern "C" __global__ void record(u64 *out, u64 index, u64 cycles) { record_begin_and_end<false>(out, index, cycles); }
extern "C" __global__ void record_dependent(u64 *out, u64 index, u64 cycles) {
    record_begin_and_end<true>(out, index, cycles);
}

// Records steps of %globaltimer. The samples go to registers first, as stores between the reads would hide steps.
extern "C" __global__ void globaltimer_steps(u64 *out) {
    u64 seen[64];
    u64 last = globaltimer_ns();
#pragma unroll
    for (int i = 0; i < 64; i++) {
        u64 now;
        while ((now = globaltimer_ns()) == last) {
        }
        seen[i] = now;
        last = now;
    }
#pragma unroll
    for (int i = 0; i < 64; i++) out[i] = seen[i];
}

// One thread per block records the SM's number, and how far %globaltimer and the cycle counter advance in `timeout_ns`,
// which gives the SM clock.
extern "C" __global__ void sm_clock(u64 *out, u64 timeout_ns) {
    u64 begin_ns = globaltimer_ns(), now_ns;
    while ((now_ns = globaltimer_ns()) == begin_ns) {
    }
    u64 first_ns = now_ns;
    u64 first = clock64();
    while ((now_ns = globaltimer_ns()) - first_ns < timeout_ns) {
    }
    u64 last = clock64();
    if (threadIdx.x == 0) {
        out[2 * blockIdx.x] = now_ns - first_ns;
        out[2 * blockIdx.x + 1] = last - first;
    }
}

// Counts itself in and out, and keeps the highest number of kernels resident at once.
extern "C" __global__ void resident(u32 *now, u32 *most, u64 cycles) {
    u32 count = atomicAdd(now, 1) + 1;
    atomicMax(most, count);
    spin_for(clock64(), cycles);
    atomicSub(now, 1);
}

// Answers the host's flag `rounds` times. The fence after the store makes it visible 0.6 us earlier. If `timed`, it
// also records %globaltimer when it sees a question, and stores the time after the reply, so that it does not delay it.
template <bool timed>
__device__ __forceinline__ void answer_each(
    const u32 *question, volatile u32 *reply, u64 *seen_ns, u32 rounds, u64 timeout_ns
) {
    u64 begin = globaltimer_ns();
    for (u32 round = 1; round <= rounds; round++) {
        while (load_acquire_system(question) != round) {
            if (globaltimer_ns() - begin > timeout_ns) return;
        }
        u64 now = timed ? globaltimer_ns() : 0;
        *reply = round;
        if (timed) seen_ns[round - 1] = now;
        __threadfence_system();
    }
}

extern "C" __global__ void answer(const u32 *question, volatile u32 *reply, u32 rounds, u64 timeout_ns) {
    answer_each<false>(question, reply, nullptr, rounds, timeout_ns);
}

extern "C" __global__ void answer_timed(const u32 *question, volatile u32 *reply, u64 *seen_ns, u32 rounds,
                                        u64 timeout_ns) {
    answer_each<true>(question, reply, seen_ns, rounds, timeout_ns);
}

// Dependent reads of host memory, where each line holds the index of the next. A walk begins at out[1], where the last
// one ended, so that walks cover all lines. Volatile reads bypass the SM's cache.
extern "C" __global__ void chase(const volatile u32 *chain, u32 reads, u64 *out) {
    u32 index = (u32)out[1];
    u64 begin_ns = globaltimer_ns();
    for (u32 i = 0; i < reads; i++) index = chain[index];
    out[0] = globaltimer_ns() - begin_ns;
    out[1] = index;
}
