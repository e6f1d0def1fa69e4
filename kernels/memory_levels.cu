// arch: 75+
// Repeated reads and writes of a working set by every SM, and dependent reads by one thread. The SMs stamp the time.

extern __shared__ uint4 own[];

// The sum of the words of each tile of `vectors` 16-byte vectors, in the pattern of `fill` in link.cu.
extern "C" __global__ void tile_sums(u32 seed, u32 vectors, u32 *sums) {
    u32 words = vectors * 4, sum = 0;
    for (u32 i = threadIdx.x; i < words; i += blockDim.x) {
        u64 word = blockIdx.x * (u64)words + i;
        sum += word_at(word, seed);
    }
    atomicAdd(sums + blockIdx.x, sum);
}

// The path of a read: through the SM's own cache, past it, from the SM's shared memory, or from that of other blocks of
// a cluster (9.0).
enum Way { CACHED, PAST_L1, SHARED, CLUSTER };

template <Way way>
__device__ __forceinline__ uint4 read(const uint4 *set, u32 at) {
    return way == SHARED ? own[at] : way == CACHED ? set[at] : load_past_l1(set + at);
}

// Reads `count` tiles of a block's width, starting at `at` and wrapping around the set, with four reads of each thread
// in flight.
template <Way way>
__device__ __forceinline__ u32 round_the_set(const uint4 *set, u32 vectors, u32 &at, u32 count) {
    const u32 ahead = 4;
    u32 sum = 0;
    for (u32 i = 0; i < count; i += ahead) {
        uint4 found[ahead];
#pragma unroll
        for (u32 k = 0; k < ahead; k++) {
            found[k] = read<way>(set, at);
            at += blockDim.x;
            if (at >= vectors) at -= vectors;
        }
#pragma unroll
        for (u32 k = 0; k < ahead; k++) sum += sum_of(found[k]);
    }
    return sum;
}

// One block for each SM. `warm` tiles are read before the clock starts. Block b begins b / gridDim of the set's tiles
// after tile `first`. The sum is over all words read, including the warm-up.
template <Way way>
__device__ __forceinline__ void read_set(const uint4 *set, u32 vectors, u32 warm, u32 count, u32 first, Stamps *out) {
    __shared__ u32 total;
    u32 tiles = vectors / blockDim.x;
    if (way == SHARED) {
        for (u32 i = threadIdx.x; i < vectors; i += blockDim.x) own[i] = set[i];
    }
    if (threadIdx.x == 0) total = 0;
    __syncthreads();
    u32 at = (u32)((first + blockIdx.x * (u64)tiles / gridDim.x) % tiles) * blockDim.x + threadIdx.x;
    u32 sum = round_the_set<way>(set, vectors, at, warm);
    __syncthreads();
    u64 begin_ns = globaltimer_ns(), begin = clock64();
    sum += round_the_set<way>(set, vectors, at, count);
    atomicAdd(&total, sum);  // the clocks are read after the data have arrived
    __syncthreads();
    u64 cycles = clock64() - begin, end_ns = globaltimer_ns();
    if (threadIdx.x == 0) out[blockIdx.x] = {begin_ns, end_ns, cycles, smid(), total};
}

#define READ(name, way)                                                                                                \
    extern "C" __global__ void __launch_bounds__(1024)                                                                 \
    name(const uint4 *set, u32 vectors, u32 warm, u32 count, u32 first, Stamps *out) {                                 \
        read_set<way>(set, vectors, warm, count, first, out);                                                          \
    }
READ(read_cached, CACHED)
READ(read_past_l1, PAST_L1)
READ(read_shared, SHARED)

// Makes a ring: the line at offsets[i] holds the address of the line at offsets[i + 1], and the last that of the first.
extern "C" __global__ void link_lines(u64 base, const u64 *offsets, u64 count) {
    for (u64 i = thread_index(); i < count; i += grid_threads()) {
        *(u64 *)(base + offsets[i]) = base + offsets[i + 1 < count ? i + 1 : 0];
    }
}

// Reads the next address through the SM's own cache, past it (from the L2), or from shared memory with 32-bit
// addresses.
template <Way way>
__device__ __forceinline__ u32 follow(u32 line) {
    u32 next;
#if __CUDA_ARCH__ >= 900
    if (way == CLUSTER) {
        asm volatile("ld.shared::cluster.u32 %0, [%1];" : "=r"(next) : "r"(line));
        return next;
    }
#endif
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(next) : "r"(line));
    return next;
}

template <Way way>
__device__ __forceinline__ u64 follow(u64 line) {
    u64 next;
    if (way == CACHED) asm volatile("ld.global.u64 %0, [%1];" : "=l"(next) : "l"(line));
    if (way == PAST_L1) asm volatile("ld.global.cg.u64 %0, [%1];" : "=l"(next) : "l"(line));
    return next;
}

template <Way way, typename Address>
__device__ __forceinline__ Address follow_all(Address line, u32 reads) {
#pragma unroll 8
    for (u32 i = 0; i < reads; i++) line = follow<way>(line);
    return line;
}

// The walk begins at place[0] and leaves its end there. `warm` reads come before the clocks; `out` gets ns and cycles.
template <Way way, typename Address>
__device__ __forceinline__ void walk(u64 *place, u32 warm, u32 reads, u64 *out) {
    Address line = follow_all<way>((Address)place[0], warm);
    if (line == (Address)~0ull) return;  // the comparison makes the clocks wait for the data
    u64 begin_ns = globaltimer_ns(), begin = clock64();
    line = follow_all<way>(line, reads);
    if (line == (Address)~0ull) return;
    out[1] = clock64() - begin;
    out[0] = globaltimer_ns() - begin_ns;
    place[0] = line;
}

template <Way way, typename Address>
__device__ __forceinline__ void walk_stamped(u64 *place, u32 warm, u32 reads, u32 *cycles) {
    Address line = follow_all<way>((Address)place[0], warm);
    if (line == (Address)~0ull) return;
    u64 before = clock64();
    for (u32 i = 0; i < reads; i++) {
        line = follow<way>(line);
        if (line == (Address)~0ull) return;
        u64 now = clock64();
        cycles[i] = (u32)(now - before);
        before = clock64();  // after the store, so that a read does not include it
    }
    place[0] = line;
}

#define WALK(name, walker, way, Out)                                                                                   \
    extern "C" __global__ void name(u64 *place, u32 warm, u32 reads, Out *out) {                                       \
        walker<way, u64>(place, warm, reads, out);                                                                     \
    }
WALK(walk_cached, walk, CACHED, u64)
WALK(walk_cached_stamped, walk_stamped, CACHED, u32)
WALK(walk_past_l1_stamped, walk_stamped, PAST_L1, u32)

// Makes the ring of `lines` 128-byte lines in shared memory; next[i] is the number of the line after line i.
__device__ __forceinline__ u32 ring_in_shared(const u32 *next, u32 lines) {
    u32 base = (u32)__cvta_generic_to_shared(own);
    for (u32 i = 0; i < lines; i++) own[i * 8].x = base + next[i] * 128;
    return base;
}

#define WALK_SHARED(name, walker, Out)                                                                                 \
    extern "C" __global__ void name(u64 *place, u32 warm, u32 reads, Out *out, const u32 *next, u32 lines) {           \
        u32 base = ring_in_shared(next, lines);                                                                        \
        place[0] += base;                                                                                              \
        walker<SHARED, u32>(place, warm, reads, out);                                                                  \
        place[0] -= base;                                                                                              \
    }
WALK_SHARED(walk_shared, walk, u64)
WALK_SHARED(walk_shared_stamped, walk_stamped, u32)

// -- dependent reads by one thread while the other SMs read a set -----------------------------------------------------

__device__ __forceinline__ uint4 read_l2(const uint4 *from) {
    uint4 v;
    asm volatile(
        "ld.global.cg.v4.u32 {%0, %1, %2, %3}, [%4];"
        : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
        : "l"(from)
    );
    return v;
}

// The record of a warp of the load: begin and end, how many batches (BATCH vectors per lane) it read, its SM, and the
// sum of the words it read.
struct Load {
    u64 begin_ns, end_ns, batches;
    u32 sm, sum;
};

const u32 BATCH = 4;
// How many warps of the load have read a batch, and whether they should stop.
enum Flag { READING, STOP };

__device__ __forceinline__ void wait_until(u64 time) {
    while ((long long)(time - clock64()) > 0) {
    }
}

// Each warp begins a batch every `interval` cycles, or later if the memory cannot keep up, until it is told to stop.
// The warps of a block read neighbouring batches, which form a row. Each block cycles through `rows` rows of its own:
// if two SMs asked for one line at the same time, they would share one answer, and the L2 would send less than arrives.
__device__ __forceinline__ void
read_until_stopped(const uint4 *set, u32 rows, u64 interval, volatile u32 *flags, Load *loads) {
    __shared__ volatile u32 stop;
    u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32, block = blockIdx.x - 1;
    u32 row = 0, sum = 0;
    Load own = {0, 0, 0, smid(), 0};
    if (threadIdx.x == 0) stop = 0;
    __syncthreads();
    // Warps begin at different times within an interval, because otherwise their batches would come in waves.
    u64 next = clock64() + (hash32(block * warps + warp) * interval >> 32);
    wait_until(next);
    own.begin_ns = globaltimer_ns();
    do {
        const uint4 *batch = set + (((u64)block * rows + row) * warps + warp) * BATCH * 32 + lane;
        // Only one warp of the block reads the stop flag, together with its data: reads of the flag by all warps would
        // contend for one place in the L2.
        u32 told = warp == 0 ? flags[STOP] : 0;
        uint4 found[BATCH];
#pragma unroll
        for (u32 k = 0; k < BATCH; k++) found[k] = read_l2(batch + k * 32);
#pragma unroll
        for (u32 k = 0; k < BATCH; k++) sum += sum_of(found[k]);
        if (++row == rows) row = 0;
        if (own.batches++ == 0 && lane == 0) atomicAdd((u32 *)flags + READING, 1);
        if (told) stop = 1;
        next += interval;
        wait_until(next);
    } while (!stop);
    own.end_ns = globaltimer_ns();
#pragma unroll
    for (int distance = 16; distance; distance /= 2) sum += __shfl_xor_sync(~0u, sum, distance);
    own.sum = sum;
    if (lane == 0) loads[block * warps + warp] = own;
}

// One thread of block 0 walks once every warp of the other blocks reads, and stops them at its end. All blocks must run
// at the same time, each on its own SM. If two blocks had to fit on an SM, the compiler would have too few registers
// and would wait between the reads of a batch.
extern "C" __global__ void __launch_bounds__(1024, 1) walk_loaded(
    u64 *place, u32 warm, u32 reads, Stamps *walked, const uint4 *set, u32 rows, u64 interval, volatile u32 *flags,
    Load *loads
) {
    if (blockIdx.x) return read_until_stopped(set, rows, interval, flags, loads);
    if (threadIdx.x) return;
    while (flags[READING] < (gridDim.x - 1) * (blockDim.x / 32)) {
    }
    u64 line = follow_all<PAST_L1>(place[0], warm);
    if (line == ~0ull) __trap();  // the comparison makes the clocks wait for the data
    u64 begin_ns = globaltimer_ns(), begin = clock64();
    line = follow_all<PAST_L1>(line, reads);
    if (line == ~0ull) __trap();
    u64 cycles = clock64() - begin, end_ns = globaltimer_ns();
    flags[STOP] = 1;
    place[0] = line;
    walked[0] = {begin_ns, end_ns, cycles, smid(), 0};
}

// -- writes of a set, a part of it by each SM -------------------------------------------------------------------------

const u32 ODD = 0x9E3779B1u;
// Tiles that a thread writes at a time; each part has at least as many.
const u32 AHEAD = 4;

// The first tile of a block's part of the set. The part ends at the first tile of the next block.
__device__ __forceinline__ u32 part_begin(u32 block, u32 tiles) {
    return (u32)(block * (u64)tiles / gridDim.x);
}

// The first word that is written to a vector in a round; each further word is larger by ODD.
__device__ __forceinline__ u32 written(u32 vector, u32 seed, u32 round) {
    return vector * 4 * ODD + seed + round;
}

__device__ __forceinline__ void write(uint4 *to, const uint4 &v) {
    asm volatile(
        "st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w) : "memory"
    );
}

// One block per SM writes `count` tiles of its part, from its begin and wrapping around it, in full lines. With
// `update` it reads each word and adds 1.
template <bool update>
__device__ __forceinline__ void write_part(uint4 *set, u32 tiles, u32 count, u32 seed, Stamps *out) {
    u32 begin_tile = part_begin(blockIdx.x, tiles), part = part_begin(blockIdx.x + 1, tiles) - begin_tile;
    u32 own = begin_tile * blockDim.x + threadIdx.x, at = 0, round = 0;
    __syncthreads();
    u64 begin_ns = globaltimer_ns(), begin = clock64();
    for (u32 i = 0; i < count; i += AHEAD) {
        u32 vector[AHEAD], rounds[AHEAD];
        uint4 value[AHEAD];
#pragma unroll
        for (u32 k = 0; k < AHEAD; k++) {
            vector[k] = own + at * blockDim.x;
            rounds[k] = round;
            if (++at == part) at = 0, round++;
            if (update) value[k] = read_l2(set + vector[k]);
        }
#pragma unroll
        for (u32 k = 0; k < AHEAD; k++) {
            u32 first = written(vector[k], seed, rounds[k]);
            if (update) value[k] = {value[k].x + 1, value[k].y + 1, value[k].z + 1, value[k].w + 1};
            else value[k] = {first, first + ODD, first + 2 * ODD, first + 3 * ODD};
            write(set + vector[k], value[k]);
        }
    }
    __threadfence();  // the clocks are read after the words have arrived
    __syncthreads();
    u64 cycles = clock64() - begin, end_ns = globaltimer_ns();
    if (threadIdx.x == 0) out[blockIdx.x] = {begin_ns, end_ns, cycles, smid(), 0};
}

extern "C" __global__ void __launch_bounds__(1024, 1)
write_set(uint4 *set, u32 tiles, u32 count, u32 seed, Stamps *out) {
    write_part<false>(set, tiles, count, seed, out);
}

extern "C" __global__ void __launch_bounds__(1024, 1)
update_set(uint4 *set, u32 tiles, u32 count, u32 seed, Stamps *out) {
    write_part<true>(set, tiles, count, seed, out);
}

// Lowers `first_wrong` to the first word that differs from what one of the kernels above makes of the pattern of that
// seed.
extern "C" __global__ void __launch_bounds__(1024)
differ_written(const u32 *words, u32 tiles, u32 count, u32 seed, u32 update, u64 *first_wrong) {
    u32 begin_tile = part_begin(blockIdx.x, tiles), part = part_begin(blockIdx.x + 1, tiles) - begin_tile;
    for (u32 at = 0; at < part; at++) {
        u32 rounds = at < count ? (count - at + part - 1) / part : 0;
        u32 vector = (begin_tile + at) * blockDim.x + threadIdx.x;
        for (u32 k = 0; k < 4; k++) {
            u64 word = vector * 4ull + k;
            u32 wanted = word_at(word, seed) + rounds;
            if (rounds && !update) wanted = written(vector, seed, rounds - 1) + k * ODD;
            if (words[word] != wanted) atomicMin(first_wrong, word);
        }
    }
}

#if __CUDA_ARCH__ >= 900
// -- shared memory of the other blocks of a cluster ------------------------------------------------------------------

__device__ __forceinline__ u32 cluster_rank() {
    u32 value;
    asm("mov.u32 %0, %cluster_ctarank;" : "=r"(value));
    return value;
}

__device__ __forceinline__ u32 cluster_blocks() {
    u32 value;
    asm("mov.u32 %0, %cluster_nctarank;" : "=r"(value));
    return value;
}

// Maps an address of this block's shared memory to the same place in another block's.
__device__ __forceinline__ u32 in_block(u32 address, u32 rank) {
    u32 there;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address), "r"(rank));
    return there;
}

// Waits for every thread of the cluster. All of its blocks have begun only after the first wait.
__device__ __forceinline__ void cluster_wait() {
    asm volatile("barrier.cluster.arrive;\nbarrier.cluster.wait;" ::: "memory");
}

// Each block reads the 64 KiB of every other block of its cluster in turn, the next one first, with four reads of each
// thread in flight. The words of block b are those of the pattern from b times 64 KiB on.
extern "C" __global__ void __launch_bounds__(1024) read_cluster(u32 seed, u32 passes, Stamps *out) {
    const u32 ahead = 4, vectors = 4096, words = vectors * 4;
    __shared__ u32 total;
    u32 rank = cluster_rank(), blocks = cluster_blocks(), base = (u32)__cvta_generic_to_shared(own);
    for (u32 i = threadIdx.x; i < words; i += blockDim.x) ((u32 *)own)[i] = word_at(blockIdx.x * (u64)words + i, seed);
    if (threadIdx.x == 0) total = 0;
    cluster_wait();
    u32 peer = rank, sum = 0;
    u64 begin_ns = globaltimer_ns(), begin = clock64();
#pragma unroll 1
    for (u32 pass = 0; pass < passes; pass++) {
        peer = peer + 1 < blocks ? peer + 1 : 0;
        if (peer == rank) peer = peer + 1 < blocks ? peer + 1 : 0;
        u32 there = in_block(base, peer);
        uint4 found[ahead];
#pragma unroll
        for (u32 k = 0; k < ahead; k++) {
            // Each pass begins at another place, so that its addresses differ from those of the previous pass.
            u32 at = (k * (vectors / ahead) + threadIdx.x + pass * 32) % vectors;
            asm volatile("ld.shared::cluster.v4.u32 {%0, %1, %2, %3}, [%4];"
                         : "=r"(found[k].x), "=r"(found[k].y), "=r"(found[k].z), "=r"(found[k].w)
                         : "r"(there + at * 16));
        }
#pragma unroll
        for (u32 k = 0; k < ahead; k++) sum += sum_of(found[k]);
    }
    atomicAdd(&total, sum);
    __syncthreads();
    u64 cycles = clock64() - begin, end_ns = globaltimer_ns();
    if (threadIdx.x == 0) out[blockIdx.x] = {begin_ns, end_ns, cycles, smid(), total};
    cluster_wait();  // other blocks may still be reading
}

// Each line of the ring is in one of the other blocks, and neighbouring lines are in different ones.
__device__ __forceinline__ u32 line_in_cluster(u32 line) {
    u32 base = (u32)__cvta_generic_to_shared(own);
    return in_block(base + line * 128, 1 + line % (cluster_blocks() - 1));
}

// Makes the ring from block 0: each line has the address of the next, and its own offset.
__device__ __forceinline__ void ring_in_cluster(const u32 *next, u32 lines) {
    for (u32 i = 0; i < lines; i++) {
        asm volatile("st.shared::cluster.v2.u32 [%0], {%1, %2};" ::"r"(line_in_cluster(i)),
                     "r"(line_in_cluster(next[i])), "r"(i * 128)
                     : "memory");
    }
}

#define WALK_CLUSTER(name, walker, Out)                                                                                \
    extern "C" __global__ void name(u64 *place, u32 warm, u32 reads, Out *out, const u32 *next, u32 lines) {           \
        cluster_wait();                                                                                                \
        if (cluster_rank() == 0) {                                                                                     \
            ring_in_cluster(next, lines);                                                                              \
            place[0] = line_in_cluster((u32)place[0] / 128);                                                           \
            walker<CLUSTER, u32>(place, warm, reads, out);                                                             \
            place[0] = follow<CLUSTER>((u32)place[0] + 4);                                                             \
        }                                                                                                              \
        cluster_wait();                                                                                                \
    }
WALK_CLUSTER(walk_cluster, walk, u64)
WALK_CLUSTER(walk_cluster_stamped, walk_stamped, u32)
#endif
