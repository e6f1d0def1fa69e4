/* A pointer chase in plain CUDA C++, with none of our code in it: what the latencies of our own kernels are held beside.
 *
 * chase FOOTPRINT_BYTES STRIDE_BYTES READS REPEATS SEED [shared]
 * One thread walks a random ring of one line each STRIDE_BYTES: once round (at most 2^22 reads) to warm up, then READS
 * dependent loads; each repeat prints a line of JSON. Reads are rounded up to whole unrolled steps, the
 * footprint down to whole lines. `shared`: a ring of 32-bit offsets in shared memory, at most 160 KiB. */

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <random>
#include <vector>

#define CHECK(call) check((call), #call)

static void check(cudaError_t code, const char *call) {
    if (code == cudaSuccess) return;
    fprintf(stderr, "chase: %s: %s\n", call, cudaGetErrorString(code));
    exit(1);
}

constexpr uint64_t UNROLL = 32, WARM_READS_AT_MOST = 1 << 22;

struct Walk {
    uint64_t cycles, ns, end;
};

__device__ uint64_t global_ns() {
    uint64_t t;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t)::"memory");
    return t;
}

__device__ uint64_t load(uint64_t address) {
    uint64_t next;
    asm volatile("ld.global.ca.u64 %0, [%1];" : "=l"(next) : "l"(address) : "memory");
    return next;
}

__device__ uint32_t load(uint32_t address) {
    uint32_t next;
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(next) : "r"(address) : "memory");
    return next;
}

template <typename Address>
__device__ Address walk(Address at, uint64_t steps) {
#pragma unroll 1
    for (uint64_t step = 0; step < steps; step++)
#pragma unroll
        for (uint64_t i = 0; i < UNROLL; i++) at = load(at);
    return at;
}

template <typename Address>
__device__ void timed(Address at, uint64_t warm_steps, uint64_t steps, Walk *out) {
    at = walk(at, warm_steps);
    /* Each clock is read after a branch on the address in hand, so that the last load has answered. */
    if (at == ~Address(0)) __trap();
    uint64_t ns = global_ns();
    int64_t begin = clock64();
    at = walk(at, steps);
    if (at == ~Address(0)) __trap();
    int64_t end = clock64();
    *out = {uint64_t(end - begin), global_ns() - ns, uint64_t(at)};
}

__global__ void chase_global(uint64_t start, uint64_t warm_steps, uint64_t steps, Walk *out) {
    timed(start, warm_steps, steps, out);
}

__global__ void chase_shared(const uint32_t *ring, uint32_t words, uint64_t warm_steps, uint64_t steps, Walk *out) {
    extern __shared__ uint32_t lines[];
    uint32_t base = uint32_t(__cvta_generic_to_shared(lines));
    for (uint32_t i = 0; i < words; i++) lines[i] = ring[i] + base;
    timed(base, warm_steps, steps, out);
}

int main(int argc, char **argv) {
    bool shared = argc == 7 && !strcmp(argv[6], "shared");
    uint64_t numbers[5] = {};
    bool good = argc == 6 || shared;
    for (int i = 0; good && i < 5; i++) {
        char *rest;
        numbers[i] = strtoull(argv[i + 1], &rest, 10);
        good = *argv[i + 1] && !*rest;
    }
    uint64_t footprint = numbers[0], stride = numbers[1], repeats = numbers[3];
    good = good && stride >= 8 && stride % 8 == 0 && footprint >= 2 * stride && numbers[2];
    if (!good || (shared && footprint > 160 << 10)) {
        fprintf(stderr, "usage: chase FOOTPRINT_BYTES STRIDE_BYTES READS REPEATS SEED [shared]\n");
        return 2;
    }
    uint64_t lines = footprint / stride, steps = (numbers[2] + UNROLL - 1) / UNROLL;
    uint64_t warm_steps = (std::min(lines, WARM_READS_AT_MOST) + UNROLL - 1) / UNROLL, bytes = lines * stride;

    /* Sattolo's shuffle: one cycle through every line. */
    std::vector<uint64_t> next(lines);
    std::iota(next.begin(), next.end(), 0);
    std::mt19937_64 random(numbers[4]);
    for (uint64_t i = lines - 1; i > 0; i--) std::swap(next[i], next[random() % i]);

    char *ring;
    Walk *out, seen;
    CHECK(cudaMalloc(&ring, bytes));
    CHECK(cudaMalloc(&out, sizeof seen));
    std::vector<char> image(bytes);
    for (uint64_t i = 0; i < lines; i++) {
        /* An offset from the ring's start where it is 32 bits wide: little-endian, its upper half 0. */
        uint64_t address = (shared ? 0 : uint64_t(ring)) + next[i] * stride;
        memcpy(&image[i * stride], &address, sizeof address);
    }
    CHECK(cudaMemcpy(ring, image.data(), bytes, cudaMemcpyHostToDevice));
    CHECK(cudaFuncSetAttribute(chase_shared, cudaFuncAttributeMaxDynamicSharedMemorySize, 160 << 10));

    for (uint64_t repeat = 0; repeat < repeats; repeat++) {
        if (shared)
            chase_shared<<<1, 1, bytes>>>((uint32_t *)ring, uint32_t(bytes / 4), warm_steps, steps, out);
        else
            chase_global<<<1, 1>>>(uint64_t(ring), warm_steps, steps, out);
        CHECK(cudaGetLastError());
        CHECK(cudaMemcpy(&seen, out, sizeof seen, cudaMemcpyDeviceToHost));
        uint64_t reads = steps * UNROLL;
        printf("{\"footprint_bytes\": %llu, \"stride_bytes\": %llu, \"reads\": %llu, ", (unsigned long long)bytes,
               (unsigned long long)stride, (unsigned long long)reads);
        printf("\"cycles_per_read\": %.4f, \"ns_per_read\": %.4f}\n", double(seen.cycles) / reads, double(seen.ns) / reads);
    }
    CHECK(cudaFree(ring));
    CHECK(cudaFree(out));
    return 0;
}
