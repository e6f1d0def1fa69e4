// arch: 75+
// Kernels whose blocks count themselves on their SM: a short one, and a long one that fills the SMs it may use.
extern "C" __global__ void count_on_sm(u32 *blocks, u64 cycles) {
    if (threadIdx.x == 0) atomicAdd(blocks + smid(), 1);
    spin_for(clock64(), cycles);
}

// Tells the host when as many blocks have begun as run at once. The last block prepares the next launch.
extern "C" __global__ void fill(u32 *blocks, u32 *begun, u32 at_once, volatile u32 *full, u64 cycles) {
    if (threadIdx.x == 0) {
        atomicAdd(blocks + smid(), 1);
        u32 count = atomicAdd(begun, 1) + 1;
        if (count == gridDim.x) *begun = 0;
        if (count == at_once) *full = 1;
        __threadfence_system();
    }
    spin_for(clock64(), cycles);
}
