// arch: 75+
// Copies pieces of mapped host memory to the device, each by one block; pieces and rows lie `pitch` bytes apart.

extern "C" __global__ void gather(const u8 *from, u8 *to, u64 piece, u64 pitch) {
    const uint4 *source = (const uint4 *)(from + blockIdx.x * pitch);
    uint4 *target = (uint4 *)(to + blockIdx.x * pitch);
    for (u64 i = threadIdx.x; i < piece / sizeof(uint4); i += blockDim.x) target[i] = source[i];
}
