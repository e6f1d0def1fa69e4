// arch: 75+
// Kernels of the graph suite. Each leaves evidence of whether it ran, when, and with which arguments.

// Adds 1 to what its predecessor wrote, so that the last word shows that each kernel waited for its predecessor.
extern "C" __global__ void append(volatile u32 *words, u32 index) {
    if (threadIdx.x == 0) words[index + 1] = words[index] + 1;
}

// The same after `cycles` of work that does not depend on the predecessor. With programmatic stream serialisation it
// does that work while its predecessor runs, and waits for the predecessor before it reads; with `trigger` it lets its
// successor start at once. In a normal launch the predecessor has ended already.
extern "C" __global__ void append_dependent(volatile u32 *words, u32 index, u32 trigger, u64 cycles) {
#if __CUDA_ARCH__ >= 900
    if (trigger) asm volatile("griddepcontrol.launch_dependents;");
#endif
    spin_for(clock64(), cycles);
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
    if (threadIdx.x == 0) words[index + 1] = words[index] + 1;
}

// Copies the words as they are when this kernel runs; they may lie in mapped host memory.
extern "C" __global__ void snapshot(const volatile u32 *words, u32 *out, u32 count) {
    for (u32 i = threadIdx.x; i < count; i += blockDim.x) out[i] = words[i];
}

// Adds its argument and its grid's size to two words of its own. After two replays they hold the sum of both.
extern "C" __global__ void note(u32 *out, u32 index, u32 value) {
    if (threadIdx.x == 0 && blockIdx.x == 0) {
        out[2 * index] += value;
        out[2 * index + 1] += gridDim.x;
    }
}

// One iteration: counts, and reports the count to the host.
extern "C" __global__ void count_up(u32 *counter, volatile u32 *flag) {
    u32 now = *counter + 1;
    *counter = now;
    *flag = now;
}

// Sends a word through the first and the last word of a block of memory.
extern "C" __global__ void pass_through(volatile u32 *block, const volatile u32 *source, u32 *out, u64 last) {
    block[0] = *source;
    block[last] = block[0] + 1;
    *out = block[last];
}
